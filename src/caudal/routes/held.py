"""Answers that are held back until it is decided who gets them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Generic, TypeVar

from caudal.service.answers import (
    CascadeUsage,
    ChatDelta,
    CompleteAnswer,
    Delta,
    OutputToken,
    SubmittedPrompt,
    UnusedAnswer,
)
from caudal.service.collecting import collect_answers
from caudal.service.service import RunningAnswer, RunningChat, RunningText

D = TypeVar("D", Delta, ChatDelta)


class HeldAnswer(Generic[D]):
    """A running answer of which the first tokens have been read, and wait.

    Args:
        answer: The answer.
        stream: Its deltas.
        count: How many sequences it has.
        with_scores: Whether whoever asked is to see how likely its tokens were.

    Attributes:
        unused: What was computed before it.
        complete: Whether all of it has been read.
        sum_logprobs: Of the tokens that were read.
        num_scored: How many these are.
    """

    def __init__(
        self,
        answer: RunningAnswer,
        stream: AsyncGenerator[list[D], None],
        count: int,
        *,
        with_scores: bool,
    ) -> None:
        self.unused: Sequence[UnusedAnswer] = ()
        self.complete = False
        self.sum_logprobs = 0.0
        self.num_scored = 0
        self._answer = answer
        self._count = count
        self._with_scores = with_scores
        self._stream: AsyncGenerator[list[D], None] = stream
        self._held: list[D] = []
        self._num_held = 0  # tokens

    async def fill(self, tokens: int) -> None:
        """Read so many tokens of each sequence, or all that there are.

        Raises what `RunningText.deltas` raises.
        """
        while not self.complete and self._num_held < tokens * self._count:
            try:
                deltas = await anext(self._stream)
            except StopAsyncIteration:
                self.complete = True
            else:
                self._held += self._read(deltas)
                self._num_held += sum(len(delta.tokens) for delta in deltas)

    def _read(self, deltas: list[D]) -> list[D]:
        """What is to be shown of what is new."""
        for delta in deltas:
            for token in delta.tokens:
                if token.score is None:
                    continue
                self.sum_logprobs += token.score.logprob
                self.num_scored += 1
                if not self._with_scores:
                    token.score, token.piece, token.in_reasoning = None, b"", False
        return deltas

    @property
    def prompt(self) -> SubmittedPrompt:
        """See `RunningAnswer`."""
        return self._answer.prompt

    @property
    def prompt_tokens(self) -> Sequence[OutputToken]:
        """See `RunningAnswer`."""
        return self._answer.prompt_tokens

    @property
    def usage(self) -> CascadeUsage:
        """See `RunningAnswer`; what is held counts."""
        usage = self._answer.usage
        return CascadeUsage(
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            usage.reasoning_tokens,
            usage.times,
            usage.accepted_prediction_tokens,
            usage.rejected_prediction_tokens,
            self.unused,
        )

    async def deltas(self) -> AsyncGenerator[list[D], None]:
        """See `RunningText.deltas`."""
        try:
            held, self._held = self._held, []
            if held:
                yield held
            if not self.complete:
                async for deltas in self._stream:
                    yield self._read(deltas)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """See `RunningAnswer`."""
        await self._stream.aclose()
        await self._answer.aclose()


class HeldText(HeldAnswer[Delta]):
    """A continued prompt."""

    def __init__(self, text: RunningText, count: int, *, with_scores: bool) -> None:
        super().__init__(text, text.deltas(), count, with_scores=with_scores)


class HeldChat(HeldAnswer[ChatDelta]):
    """An answered conversation.

    Attributes:
        ignored: See `RunningChat`.
    """

    def __init__(self, chat: RunningChat, count: int, *, with_scores: bool) -> None:
        super().__init__(chat, chat.deltas(), count, with_scores=with_scores)
        self.ignored = chat.ignored

    async def collect(self) -> list[CompleteAnswer]:
        """See `RunningChat`."""
        return await collect_answers(self.deltas(), self._count)
