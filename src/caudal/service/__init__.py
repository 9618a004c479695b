"""What a model does, whoever asks: chat, complete, embed, score, tokenise, count, render.

The one door to a model: the HTTP routes, the library and the command line all go through it.
"""
