"""Guesses at the tokens to come, made between iterations.

What is guessed costs rows of an iteration and brings tokens where it is right; which tokens an
answer has never depends on it. Speculative decoding: arXiv 2211.17192; drawing every token with a
random number of its own (`SamplingRow`) is what makes it exact for sampling without a correction.
"""
