"""Conversations and answers, whatever API carries them.

A request becomes a `Conversation`; a `ChatPreparer` makes it a prompt; an `AnswerParser` turns the
model's text into events (content, reasoning, tool calls) that each API writes in its own way.
"""
