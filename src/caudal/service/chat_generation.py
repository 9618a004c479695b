"""A chat answer as it is generated: the text of a `Generation`, told apart into events."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from caudal.chat.events import ReasoningDelta, ToolCallBegin, ToolCallEnd
from caudal.chat.parser import AnswerParser
from caudal.service.answers import (
    ChatDelta,
    CompleteAnswer,
    Delta,
    OutputToken,
    SubmittedPrompt,
    Usage,
)
from caudal.service.collecting import collect_answers
from caudal.service.generation import Generation


@dataclass(slots=True)
class _Sequence:
    parser: AnswerParser
    finished: bool = False
    read: int = 0  # characters of the raw text
    unreported: list[OutputToken] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)  # of tokens, in the raw text
    has_calls: bool = False
    in_call: bool = False  # whether it was stopped there

    @property
    def num_reasoning_tokens(self) -> int:
        """How many of its tokens were spent on reasoning."""
        offsets = self.offsets  # which never decrease
        return sum(
            bisect_left(offsets, end) - bisect_left(offsets, begin)
            for begin, end in self.parser.reasoning_spans
        )


class ChatGeneration:
    """A submitted conversation, as a stream of events.

    Args:
        generation: The running request.
        new_parser: Makes a parser for each of its sequences.
        include_reasoning: Whether `ReasoningDelta`s are passed on.
        single_call: End an answer after its first call.
        ignored: See below.

    Attributes:
        ignored: What was asked for that has no effect on this model, as `ChatPrompt` names it.
    """

    def __init__(
        self,
        generation: Generation,
        new_parser: Callable[[], AnswerParser],
        *,
        include_reasoning: bool = True,
        single_call: bool = False,
        ignored: Sequence[str] = (),
    ) -> None:
        self.ignored = ignored
        self._generation = generation
        self._with_scores = generation.params.logprobs is not None
        self._single_call = single_call
        self._include_reasoning = include_reasoning
        self._sequences = [_Sequence(new_parser()) for _ in range(generation.params.n)]

    @property
    def prompt(self) -> SubmittedPrompt:
        """The conversation as the model gets it."""
        return self._generation.prompt

    @property
    def prompt_tokens(self) -> Sequence[OutputToken]:
        """See `Generation.prompt_tokens`."""
        return self._generation.prompt_tokens

    @property
    def usage(self) -> Usage:
        """The request's figures, as of the latest deltas."""
        reasoning = sum(sequence.num_reasoning_tokens for sequence in self._sequences)
        return replace(self._generation.usage, reasoning_tokens=reasoning)

    async def deltas(self) -> AsyncGenerator[list[ChatDelta], None]:
        """Yield what is new after each iteration, never an empty list. Use it once, and close it.

        Raises what `Generation.deltas` raises.
        """
        async with contextlib.aclosing(self._generation.deltas()) as stream:
            async for deltas in stream:
                pieces = (piece for delta in deltas for piece in self._pieces(delta))
                found = [new for piece in pieces if (new := self._read(piece)) is not None]
                if found:
                    yield found

    async def collect(self) -> list[CompleteAnswer]:
        """The whole answers, one per sequence. Raises what `Generation.deltas` raises."""
        return await collect_answers(self.deltas(), len(self._sequences))

    async def aclose(self) -> None:
        """Give up what still runs."""
        await self._generation.aclose()

    def _pieces(self, delta: Delta) -> Iterator[Delta]:
        """A delta cut at its tokens, where it matters which token an event comes from.

        Otherwise what has come together stays together.
        """
        sequence = self._sequences[delta.index]
        begin, length, tokens = sequence.read, len(delta.text), delta.tokens
        sequence.read += length
        matters = self._single_call or self._with_scores
        if not matters or len(tokens) < 2:
            yield delta
            return
        inner = [min(max(token.offset - begin, 0), length) for token in tokens[1:]]
        for token, start, end in zip(tokens, [0, *inner], [*inner, length], strict=True):
            piece = Delta(delta.index, delta.text[start:end], [token])
            if token is tokens[-1]:
                piece = replace(
                    piece, finish_reason=delta.finish_reason, stop_reason=delta.stop_reason
                )
            yield piece

    def _read(self, delta: Delta) -> ChatDelta | None:
        sequence = self._sequences[delta.index]
        if sequence.finished:
            return None
        reason = delta.finish_reason
        events = sequence.parser.push(delta.text)
        if reason is not None:
            stopped = delta.stop_reason is not None
            events += sequence.parser.finish(cut=stopped or reason == "length")
            # What stops an answer within a call leaves a part of one, which is not to be run.
            sequence.in_call = stopped and sequence.parser.unfinished
        sequence.unreported += delta.tokens
        sequence.offsets += (token.offset for token in delta.tokens)
        sequence.has_calls |= any(isinstance(event, ToolCallBegin) for event in events)
        if self._single_call and ToolCallEnd(0) in events:
            events = events[: events.index(ToolCallEnd(0)) + 1]
            reason = "stop"
            sequence.in_call = False
            self._generation.end_sequence(delta.index, len(sequence.offsets))
        if not self._include_reasoning:
            events = [event for event in events if not isinstance(event, ReasoningDelta)]
        if not events and reason is None:
            return None
        sequence.finished = reason is not None
        if reason == "stop" and sequence.has_calls and not sequence.in_call:
            reason = "tool_calls"
        tokens, sequence.unreported = sequence.unreported, []
        if self._with_scores:
            for token in tokens:
                token.in_reasoning = sequence.parser.in_reasoning(token.offset)
        return ChatDelta(delta.index, events, tokens, reason, delta.stop_reason)
