"""What turns a model's text into events."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Protocol

from caudal.chat.calls.scanner import ToolScanner
from caudal.chat.event_writer import EventWriter
from caudal.chat.events import ChatEvent
from caudal.chat.reasoning import Kind, ReasoningSplitter


def new_call_id() -> str:
    """An id for a tool call."""
    return f"call_{secrets.token_hex(12)}"


class AnswerParser(Protocol):
    """Reads one sequence's text, in pieces of any size.

    The text holds, by name, the control tokens that mean something to the parser
    (`ChatPrompt.visible_tokens`). The events of all pieces, joined, do not depend on how the text
    was cut. Whatever is no call after all comes back as content, so no text is lost, and nothing
    raises.
    """

    def push(self, text: str) -> list[ChatEvent]:
        """The events that become certain with this text."""

    def finish(self, *, cut: bool = False) -> list[ChatEvent]:
        """The rest, now that the text has ended. Push nothing afterwards.

        Args:
            cut: Whether the model had not come to its end.
        """

    @property
    def unfinished(self) -> bool:
        """Whether the text has ended within a call."""

    @property
    def reasoning_spans(self) -> Sequence[tuple[int, int]]:
        """Where in the text, as far as it was read, reasoning begins and ends, markers included.

        They don't overlap. One that goes on ends at `ENDLESS`.
        """

    def in_reasoning(self, offset: int) -> bool:
        """Whether the character at this offset of the text, already read, belongs to reasoning."""
        return any(begin <= offset < end for begin, end in self.reasoning_spans)


class MarkedAnswerParser(AnswerParser):
    """Reads answers that may begin with reasoning and may have calls among their content.

    Args:
        splitter: Tells reasoning; None where there is none, or nobody asked.
        scanner: Tells calls; None where there are none.
        writer: The scanner's, and where content goes without one.
    """

    def __init__(
        self, splitter: ReasoningSplitter | None, scanner: ToolScanner | None, writer: EventWriter
    ) -> None:
        self._splitter = splitter
        self._scanner = scanner
        self._writer = writer

    def push(self, text: str) -> list[ChatEvent]:
        """See `AnswerParser`."""
        if self._splitter is None:
            self._read("content", text)
        else:
            for kind, piece in self._splitter.push(text):
                self._read(kind, piece)
        return self._writer.take_events()

    def finish(self, *, cut: bool = False) -> list[ChatEvent]:
        """See `AnswerParser`."""
        if self._splitter is not None:
            for kind, piece in self._splitter.finish():
                self._read(kind, piece)
        if self._scanner is not None:
            self._scanner.finish(cut=cut)
        self._writer.finish()
        return self._writer.take_events()

    @property
    def unfinished(self) -> bool:
        """See `AnswerParser`."""
        return self._scanner is not None and self._scanner.unfinished

    @property
    def reasoning_spans(self) -> Sequence[tuple[int, int]]:
        """See `AnswerParser`."""
        return () if self._splitter is None else (self._splitter.reasoning_span,)

    def _read(self, kind: Kind, text: str) -> None:
        if kind == "reasoning":
            self._writer.reasoning(text)
        elif self._scanner is None:
            self._writer.plain(text)
        else:
            self._scanner.push(text)
