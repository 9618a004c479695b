"""What turns a model's text into events."""

from __future__ import annotations

from typing import Protocol

from caudal.chat.events import ChatEvent


class AnswerParser(Protocol):
    """Reads one sequence's text, in pieces of any size.

    The text holds the control tokens that mean something to the parser (`ChatPrompt.visible_tokens`)
    by name. The events of all pieces, joined, do not depend on how the text was cut. Whatever
    is no call after all comes back as content, so no text is lost, and nothing raises.
    """

    def push(self, text: str) -> list[ChatEvent]:
        """The events that become certain with this text."""

    def finish(self) -> list[ChatEvent]:
        """The rest, now that the text has ended. Push nothing afterwards."""

    def in_reasoning(self, offset: int) -> bool:
        """Whether the character at this offset of the text, already read, belongs to reasoning."""
