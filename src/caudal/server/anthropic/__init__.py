"""Anthropic's API: messages, whole and streamed, and counting their tokens."""
