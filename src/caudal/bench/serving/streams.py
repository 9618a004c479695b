"""What a stream of events said, and when each of its tokens came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec


class _ToolFunction(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _ToolFunction | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_DECODER = msgspec.json.Decoder(_Event)


class StreamError(Exception):
    """The server sent an error instead of the rest of an answer."""


@dataclass(slots=True)
class ToolCall:
    """A call that the model makes.

    Attributes:
        id: The server's name for it.
        name: The function.
        arguments: JSON, as the model wrote it.
    """

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Stream:
    """An answer, read.

    Attributes:
        times: When each event with tokens came.
        text: The answer without what the model thought.
        calls: Functions that it calls.
        finish_reason: Why it ended; None if the server didn't say.
        prompt_tokens: As the server counted; None if it didn't.
        cached_tokens: Of these, how many it had already; None if it didn't say.
        output_tokens: Tokens that came; None if it didn't say.
    """

    times: list[float] = field(default_factory=list)
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


def read_stream(pieces: Sequence[tuple[float, bytes]]) -> Stream:
    """Read an answer's events.

    Args:
        pieces: The body in pieces, with when each came.

    Raises:
        StreamError: An event is an error.
        ValueError: An event isn't JSON, or none that a server of OpenAI's API sends; or there are
            none.
    """
    stream = Stream()
    texts: list[str] = []
    first_choice: float | None = None
    for when, data in timed_events(pieces):
        try:
            event = _DECODER.decode(data)
        except RecursionError as deep:
            raise ValueError("an event is nested too deeply") from deep
        if (error := bytes(event.error)) != b"null":
            raise StreamError(error.decode(errors="replace"))
        for choice in event.choices or ():
            first_choice = when if first_choice is None else first_choice
            if _has_token(choice):
                stream.times.append(when)
            _take(choice, stream, texts)
        if event.usage is not None:
            _take_usage(event.usage, stream)
    if first_choice is None and stream.output_tokens is None:
        body = b"".join(piece for _, piece in pieces)
        if b"data:" not in body:
            said = body[:200].decode(errors="replace").strip()
            raise ValueError(f"no events came, but {said!r}" if said else "no events came")
    if not stream.times and first_choice is not None and stream.output_tokens != 0:
        stream.times.append(first_choice)  # tokens without text, such as control tokens
    stream.text = "".join(texts)
    return stream


def timed_events(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of a body's events up to `[DONE]`, each with when its end came."""
    rest = b""
    for when, piece in pieces:
        *complete, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in complete:
            data = event.removeprefix(b"data:")
            if len(data) == len(event) or b"\n" in data:  # comments, other fields, several lines
                lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
                data = b"\n".join(lines)
            data = data.strip()
            if data == b"[DONE]":
                return
            if data:
                yield when, data


def _has_token(choice: _Choice) -> bool:
    """Whether an event shows progress: some servers send one for half a character, too."""
    if choice.text is not None:
        return bool(choice.text) or choice.finish_reason is None
    delta = choice.delta
    if delta is None:
        return choice.finish_reason is None
    if delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls:
        return True
    return delta.role is None and delta.content is not None and choice.finish_reason is None


def _take(choice: _Choice, stream: Stream, texts: list[str]) -> None:
    stream.finish_reason = choice.finish_reason or stream.finish_reason
    if choice.text:
        texts.append(choice.text)
    if choice.delta is None:
        return
    if choice.delta.content:
        texts.append(choice.delta.content)
    for part in choice.delta.tool_calls or ():
        place = min(max(part.index, 0), 63)
        while len(stream.calls) <= place:
            stream.calls.append(ToolCall())
        call = stream.calls[place]
        call.id = part.id or call.id
        if part.function is not None:
            call.name = part.function.name or call.name
            call.arguments += part.function.arguments or ""


def _take_usage(usage: _Usage, stream: Stream) -> None:
    stream.prompt_tokens = usage.prompt_tokens
    stream.output_tokens = usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        stream.cached_tokens = usage.prompt_tokens_details.cached_tokens
