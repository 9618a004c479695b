"""Conversations in the form of OpenAI's chat API, with what others added to it."""
