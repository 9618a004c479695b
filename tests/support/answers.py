"""Reads answers in tests: whole, in pieces, with ids that count."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from caudal.chat.calls.formats import TOOL_FORMATS
from caudal.chat.calls.scanner import ToolScanner
from caudal.chat.conversation import Tool
from caudal.chat.dialect import MESSAGE_FORMATS
from caudal.chat.event_writer import EventWriter
from caudal.chat.events import (
    Answer,
    ChatEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArgumentsDelta,
)
from caudal.chat.messages import MessagesParser
from caudal.chat.parser import AnswerParser, MarkedAnswerParser
from caudal.chat.reasoning import REASONING_FORMATS, ReasoningSplitter

TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            name="weather",
            parameters={
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "hourly": {"type": "boolean"},
                    "where": {"type": "object"},
                    "tags": {"type": "array"},
                },
            },
        ),
        Tool(name="now"),
    )
}


def new_parser(
    tools: str | None = None,
    reasoning: str | None = None,
    *,
    live: bool = False,
    open_already: bool = False,
    prompt_end: str = "",
) -> AnswerParser:
    count = itertools.count()
    writer = EventWriter(lambda: f"call_{next(count)}", live=live)
    if tools in MESSAGE_FORMATS:
        return MessagesParser(
            MESSAGE_FORMATS[tools],
            writer,
            tools=TOOLS,
            with_reasoning=True,
            live=live,
            prompt_end=prompt_end,
        )
    scanner = None
    if tools is not None:
        scanner = ToolScanner(TOOL_FORMATS[tools], TOOLS, writer, live=live)
    splitter = None
    if reasoning is not None:
        splitter = ReasoningSplitter(REASONING_FORMATS[reasoning], open_already=open_already)
    return MarkedAnswerParser(splitter, scanner, writer)


def events_of(parser: AnswerParser, pieces: Iterable[str]) -> list[ChatEvent]:
    events: list[ChatEvent] = []
    for piece in pieces:
        events += parser.push(piece)
    return events + parser.finish()


def joined(events: Iterable[ChatEvent]) -> list[ChatEvent]:
    """The events with neighbouring deltas of a kind joined."""
    result: list[ChatEvent] = []
    for event in events:
        match result[-1] if result else None, event:
            case ContentDelta(before), ContentDelta(text):
                result[-1] = ContentDelta(before + text)
            case ReasoningDelta(before), ReasoningDelta(text):
                result[-1] = ReasoningDelta(before + text)
            case ToolCallArgumentsDelta(index, before), ToolCallArgumentsDelta(_, text):
                result[-1] = ToolCallArgumentsDelta(index, before + text)
            case _:
                result.append(event)
    return result


def answer_of(events: Iterable[ChatEvent]) -> Answer:
    answer = Answer()
    answer.add(events)
    return answer


def cut(text: str, lengths: Sequence[int]) -> list[str]:
    """The text in pieces of these lengths, over and over."""
    pieces: list[str] = []
    place = 0
    for length in itertools.cycle(lengths):
        if place >= len(text):
            return pieces
        pieces.append(text[place : place + length])
        place += length
    return pieces
