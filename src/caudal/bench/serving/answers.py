"""What came of a request: its times, its tokens, or why it failed."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec
from httptools import HttpParserError

from caudal.bench.serving.conversation import Turn
from caudal.bench.serving.http_client import (
    ConnectionClosedError,
    EndlessAnswerError,
    StreamedAnswer,
)
from caudal.bench.serving.streams import Stream, StreamError, read_stream

CONNECTION = "connection"
"""There was no connection, or it broke."""

TIMEOUT = "timeout"
"""Nothing came for too long."""

ENDLESS = "endless answer"
"""More came than an answer may have."""

PROTOCOL = "protocol"
"""What came is neither HTTP, nor events of OpenAI's API."""

STREAM = "error in the stream"
"""The server broke an answer off with an error."""

WRONG_LENGTH = "wrong length"
"""Not as many tokens as were asked for."""

WRONG_ANSWER = "wrong answer"
"""An answer that isn't what it was to be, such as JSON that its schema doesn't allow."""

UNFINISHED = "unfinished"
"""The load was broken off; no fault of the server's."""


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request's fate. Times are seconds since the phase began.

    Attributes:
        due: From when its latency counts.
        sent: When it was sent.
        first: When the first token came; None if none did.
        ended: When it ended.
        conversation: Which conversation of the phase it is of.
        turn: Which turn of that.
        prompt_tokens: As the server counted them, or else as they were meant to be.
        cached_tokens: Of these, those that the server had already; None if it didn't say.
        output_tokens: Tokens that came.
        gaps: Microseconds between the events that brought tokens.
        error: What kind of failure, or None.
        message: More about it.
    """

    due: float
    sent: float
    first: float | None = None
    ended: float
    conversation: int = 0
    turn: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    gaps: list[int] = msgspec.field(default_factory=list)
    error: str | None = None
    message: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first is None else self.first - self.due

    @property
    def tpot(self) -> float | None:
        """Seconds for each token behind the first, on average."""
        if self.first is None or self.output_tokens < 2:
            return None
        return self.first_to_last / (self.output_tokens - 1)

    @property
    def first_to_last(self) -> float:
        """Seconds from the first token to the last."""
        return sum(self.gaps) / 1e6

    def values(self, metric: str) -> Sequence[float]:
        """Its seconds of `ttft`, `itl` (one for each gap), `tpot` or `e2e`; none if it failed."""
        if self.error is not None:
            return ()
        match metric:
            case "ttft":
                found = self.ttft
            case "tpot":
                found = self.tpot
            case "e2e":
                found = self.ended - self.due
            case _:
                return [gap / 1e6 for gap in self.gaps]
        return () if found is None else (found,)


def failure(error: Exception) -> tuple[str, str]:
    """What kind of failure an exception of the client is, and what it says."""
    words = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        return TIMEOUT, words
    if isinstance(error, HttpParserError):
        return PROTOCOL, words
    if isinstance(error, EndlessAnswerError):
        return ENDLESS, words
    if isinstance(error, ConnectionClosedError):
        return CONNECTION, words
    return CONNECTION, f"{type(error).__name__}: {words}"


def judge(response: StreamedAnswer, turn: Turn) -> tuple[Stream, tuple[str, str] | None]:
    """Read an answer, and say what is wrong with it, if anything is."""
    if response.status != HTTPStatus.OK:
        words = response.body.decode(errors="replace")[:300]
        return Stream(), (f"status {response.status}", words)
    try:
        stream = read_stream(response.pieces)
    except StreamError as error:
        return Stream(), (STREAM, str(error)[:300])
    except ValueError as error:
        return Stream(), (PROTOCOL, str(error)[:300])
    return stream, _fault(stream, turn)


def _fault(stream: Stream, turn: Turn) -> tuple[str, str] | None:
    generated = len(stream.times) if stream.output_tokens is None else stream.output_tokens
    if turn.exact_length and generated != turn.max_tokens:
        return WRONG_LENGTH, f"generated {generated} of {turn.max_tokens} tokens"
    if generated == 0:
        return WRONG_LENGTH, "generated nothing"
    if generated > turn.max_tokens:
        return WRONG_LENGTH, f"generated {generated}, but at most {turn.max_tokens} were asked for"
    if turn.check is not None and (wrong := turn.check(stream)) is not None:
        return WRONG_ANSWER, wrong
    return None
