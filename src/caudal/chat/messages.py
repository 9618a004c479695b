"""Reads answers that are a row of messages: some are thoughts, some are calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from caudal.chat.calls.json_calls import arguments_of
from caudal.chat.calls.reading import (
    BrokenCallError,
    CallArguments,
    CallContext,
    CallDone,
    CallName,
    CallPart,
    Reader,
    whole_calls,
)
from caudal.chat.conversation import Tool
from caudal.chat.event_writer import EventWriter
from caudal.chat.events import ChatEvent
from caudal.chat.markers import find_marker, held_back
from caudal.chat.message_format import MAX_HEADER, MESSAGE, START, MessageFormat, begun_header
from caudal.chat.parser import AnswerParser
from caudal.chat.reasoning import ENDLESS

_Body = Literal["content", "reasoning", "call"]


class MessagesParser(AnswerParser):
    """An `AnswerParser` for one format.

    Where a message begins and ends, whoever bounds thinking tells too, by bytes
    (`caudal.grammars.thinking`): the same rules there must come to the same with every token.

    Args:
        message_format: How messages are written.
        writer: Where content and calls go.
        tools: The tools on offer, by name; None where calls aren't told: as content they are shown
            as they were written.
        with_reasoning: Whether reasoning is told; else it is content.
        live: See `CallContext`.
        json_calls: Whether calls are enforced in the format's `json_syntax`.
        only_calls: Whether a grammar allows nothing but calls, but for reasoning.
        prompt_end: The end of the prompt, from the header of the message that is to be written or
            continued.
    """

    def __init__(
        self,
        message_format: MessageFormat,
        writer: EventWriter,
        *,
        tools: Mapping[str, Tool] | None,
        with_reasoning: bool,
        live: bool,
        json_calls: bool = False,
        only_calls: bool = False,
        prompt_end: str = "",
    ) -> None:
        self._format = message_format
        self._ends = (*message_format.ends, START)
        self._unfinished = False
        self._only_calls = only_calls
        self._writer = writer
        self._tools = tools
        self._with_reasoning = with_reasoning
        self._live = live
        # Arguments as JSON come in pieces; all others are read when the message has ended.
        self._reader = None if json_calls else message_format.read
        self._text = ""
        self._state: Literal["between", "header", "body"] = "header"
        self._body: _Body = "content"
        self._header = ""
        self._call: list[str] = []
        self._read = 0
        self._spans: list[tuple[int, int]] = []  # of reasoning, in the text
        self._begin = 0  # of the message being read
        if prompt_end:
            self.push(begun_header(prompt_end))
            self._read = self._begin = 0

    def push(self, text: str) -> list[ChatEvent]:
        """See `AnswerParser`."""
        self._text += text
        self._read += len(text)
        while self._step():
            pass
        return self._writer.take_events()

    def finish(self, *, cut: bool = False) -> list[ChatEvent]:
        """See `AnswerParser`."""
        if self._state == "header":
            header = self._header + self._text
            # A header that is cut short is no text, and so is the beginning of one in a grammar.
            if not (cut and self._may_be_header(header)):
                self._content(header)
            self._unfinished = self._unfinished or self._format.called_in(header) is not None
        elif self._state == "body":
            self._add_body(self._text)
            self._end_body(cut=cut)
        else:
            self._content(self._text)
        self._text = ""
        self._writer.finish()
        return self._writer.take_events()

    @property
    def unfinished(self) -> bool:
        """See `AnswerParser`."""
        return self._unfinished

    @property
    def reasoning_spans(self) -> Sequence[tuple[int, int]]:
        """See `AnswerParser`."""
        is_open = self._state == "body" and self._body == "reasoning"
        return [*self._spans, (self._begin, ENDLESS)] if is_open else self._spans

    def _content(self, text: str) -> None:
        if not self._only_calls:
            self._writer.content(text)

    def _step(self) -> bool:
        """Read up to the next marker; returns whether there may be more to read."""
        match self._state:
            case "between":
                return self._read_between()
            case "header":
                return self._read_header()
            case "body":
                return self._read_body()

    def _read_between(self) -> bool:
        found = find_marker(self._text, (START,))
        if found is None:
            free = len(self._text) - held_back(self._text, (START,))
            self._content(self._text[:free])
            self._text = self._text[free:]
            return False
        self._content(self._text[: found[0]])
        self._consume(found[0] + len(START))
        self._header = START
        self._state = "header"
        return True

    def _read_header(self) -> bool:
        plain = self._header == "" and not self._may_be_header(self._text)
        found = find_marker(self._text, (MESSAGE,))
        if not plain and found is not None and len(self._header) + found[0] <= MAX_HEADER:
            self._header += self._text[: found[0]]
            self._consume(found[0] + len(MESSAGE))
            self._begin_body()
            return True
        if plain or len(self._header) + len(self._text) > MAX_HEADER + len(MESSAGE):
            # No message after all: an answer without a header.
            self._content(self._header)
            self._header = ""
            self._state = "body"
            self._body = "content"
            return True
        return False

    def _may_be_header(self, text: str) -> bool:
        stripped = text.lstrip()
        return any(
            stripped.startswith(begin) or begin.startswith(stripped)
            for begin in self._format.header_begins
        )

    def _begin_body(self) -> None:
        tool = None if self._tools is None else self._format.called_in(self._header)
        self._state = "body"
        self._call.clear()
        if tool is not None:
            self._body = "call"
            if self._live and self._reader is None:
                self._writer.part(CallName(tool))
        elif self._with_reasoning and self._format.thought.match(self._header):
            self._body = "reasoning"
        else:
            self._body = "content"

    def _read_body(self) -> bool:
        found = find_marker(self._text, self._ends)
        if found is None:
            free = len(self._text) - held_back(self._text, self._ends)
            self._add_body(self._text[:free])
            self._text = self._text[free:]
            return False
        place, marker = found
        self._add_body(self._text[:place])
        self._consume(place if marker == START else place + len(marker))
        self._end_body()
        return True

    def _add_body(self, text: str) -> None:
        if not text:
            return
        if self._body == "reasoning":
            self._writer.reasoning(text)
        elif self._body == "content":
            self._content(text)
        else:
            self._call.append(text)
            if self._live and self._reader is None:
                self._writer.part(CallArguments(text))

    def _end_body(self, *, cut: bool = False) -> None:
        if self._body == "reasoning":
            self._spans.append((self._begin, self._read - len(self._text)))
        elif self._body == "call":
            body = "".join(self._call)
            if self._reader is None:
                self._end_json_call(body, cut=cut)
            else:
                self._end_calls(self._reader, body, cut=cut)
        self._begin = self._read - len(self._text)
        self._state = "between"
        self._header = ""

    def _end_calls(self, reader: Reader, body: str, *, cut: bool) -> None:
        """Read the calls of a body; a message's is one, but several make no difference."""
        begin, tools = self._format.calls_begin, self._tools or {}
        calls: list[CallPart] = []
        rest = body
        if body.lstrip().startswith(begin):
            context = CallContext(tools=tools, marker=begin, live=self._live)
            calls, rest = whole_calls(reader, body.lstrip()[len(begin) :], context)
        for part in calls:
            self._writer.part(part)
        if calls and not rest.strip():
            return
        self._unfinished = cut
        if not self._live:  # else it was cut short
            self._content(rest if calls else self._header + MESSAGE + body)

    def _end_json_call(self, body: str, *, cut: bool) -> None:
        name, tools = self._format.called_in(self._header), self._tools or {}
        assert name is not None
        if self._live and name in tools and tools[name].grammar is not None:
            self._unfinished = cut
            if not cut:
                self._writer.part(CallDone())
            return
        try:
            # A model that calls without arguments may write none, but not where it was cut short.
            arguments = arguments_of(body.strip() or ("" if cut else "{}"))
        except BrokenCallError:
            self._unfinished = cut
            if not self._live:  # else it was cut short, and what there is has been sent
                self._content(self._header + MESSAGE + body)
            return
        if not self._live:
            self._writer.part(CallName(name))
        if not self._live or not body:
            self._writer.part(CallArguments(arguments))
        self._writer.part(CallDone())

    def _consume(self, count: int) -> None:
        self._text = self._text[count:]
