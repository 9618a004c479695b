"""Writes the events of an answer: joins deltas, numbers calls, and holds what isn't certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from caudal.chat.calls.reading import CallArguments, CallDone, CallName, CallPart
from caudal.chat.events import (
    ChatEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallBegin,
    ToolCallEnd,
)
from caudal.chat.text_input import TextInput, input_of


class EventWriter:
    """Numbers calls and writes the events of an answer with calls.

    White space next to a call is dropped: templates write it themselves when the answer is sent
    back, and an answer of nothing but calls has no content.

    Args:
        new_id: Makes ids of calls.
        live: Pass parts on at once. Otherwise a call is passed on when it is complete, for what has
            been sent can't be taken back.
        text_inputs: What custom tools take, by the tools' names.
    """

    def __init__(
        self,
        new_id: Callable[[], str],
        *,
        live: bool,
        text_inputs: Mapping[str, TextInput] | None = None,
    ) -> None:
        self._new_id = new_id
        self._live = live
        self._text_inputs = text_inputs or {}
        self._wrapped: list[str] | None = None  # arguments that a custom tool's text is taken from
        self._index = -1
        self._held: list[CallPart] = []
        self._space = ""
        self._next_to_call = False
        self._events: list[ChatEvent] = []
        self._sent_unfinished = False

    def take_events(self) -> list[ChatEvent]:
        """The events so far, once; deltas of the same kind are joined."""
        taken, self._events = self._events, []
        return taken

    def content(self, text: str) -> None:
        """Text that belongs to no call."""
        text = self._space + text
        if self._next_to_call:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._next_to_call = False
            self._add(ContentDelta(kept))

    def plain(self, text: str) -> None:
        """Text of an answer that has no calls."""
        if text:
            self._add(ContentDelta(text))

    def reasoning(self, text: str) -> None:
        """Text the model wrote while it thought."""
        if text:
            self._add(ReasoningDelta(text))

    def part(self, part: CallPart) -> None:
        """A part of a call."""
        self._held.append(part)
        if self._live or isinstance(part, CallDone):
            for held in self._held:
                self._send(held)
            self._held.clear()
            self._sent_unfinished = not isinstance(part, CallDone)

    def give_up(self) -> bool:
        """What was read since the last complete call is none; returns whether it was passed on."""
        self._held.clear()
        sent, self._sent_unfinished = self._sent_unfinished, False
        return sent

    def finish(self) -> None:
        """The text has ended: white space at its end is content unless it is next to a call."""
        if self._space and not self._next_to_call:
            self._add(ContentDelta(self._space))
        self._space = ""

    def _send(self, part: CallPart) -> None:
        self._space = ""
        self._next_to_call = True
        match part:
            case CallName(name):
                self._index += 1
                self._add(ToolCallBegin(self._index, self._new_id(), name))
                text_input = self._text_inputs.get(name)
                is_wrapped = text_input is not None and text_input.grammar is None
                self._wrapped = [] if is_wrapped else None
            case CallArguments(text) if self._wrapped is not None:
                self._wrapped.append(text)
            case CallArguments(text):
                self._add(ToolCallArgumentsDelta(self._index, text))
            case CallDone():
                if self._wrapped and (text := input_of("".join(self._wrapped))):
                    self._add(ToolCallArgumentsDelta(self._index, text))
                self._add(ToolCallEnd(self._index))

    def _add(self, event: ChatEvent) -> None:
        last = self._events[-1] if self._events else None
        match last, event:
            case ContentDelta(before), ContentDelta(text):
                self._events[-1] = ContentDelta(before + text)
            case ReasoningDelta(before), ReasoningDelta(text):
                self._events[-1] = ReasoningDelta(before + text)
            case ToolCallArgumentsDelta(index, before), ToolCallArgumentsDelta(_, text):
                self._events[-1] = ToolCallArgumentsDelta(index, before + text)
            case _:
                self._events.append(event)
