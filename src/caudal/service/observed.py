"""What a request has models do, noted in one place, whichever route and API it came by."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from caudal.errors import CaudalError, RequestTimeoutError
from caudal.sampling_params import SamplingParams
from caudal.service.answers import (
    AnswerTimes,
    CascadeUsage,
    ChatDelta,
    CompleteAnswer,
    Delta,
    Embedding,
    OutputToken,
    PairScore,
    SubmittedPrompt,
    Usage,
)
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.forwarding import ForwardingService
from caudal.service.interruption import Interruption
from caudal.service.models import Found
from caudal.service.prompt_log import AnswerLog, log_prompt
from caudal.service.service import RunningAnswer, RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork

D = TypeVar("D", Delta, ChatDelta)
T = TypeVar("T")

Outcome = Literal["ok", "stop", "length", "cancelled", "rejected", "failed", "timeout"]
"""How a request ended. "ok": it was answered without generating anything; "rejected": nothing was
done for it, by its own fault or a limit's."""

_WORST_FIRST: Sequence[Outcome] = ("failed", "timeout", "cancelled", "length", "stop", "ok")


@dataclass(frozen=True, slots=True)
class Timings:
    """What took how long, in seconds; None where it never began, or nobody knows.

    Attributes:
        template: Making the prompt: the chat template, the tokenizer.
        queue: Waiting in the engine's queue, while a grammar is made if there is one.
        prefill: Computing the prompt, up to the first token.
        decode: The other tokens.
    """

    template: float | None = None
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None

    @classmethod
    def of(cls, times: AnswerTimes | None) -> Timings:
        """Those between an answer's times."""
        if times is None:
            return cls()
        return cls(
            _between(times.begun, times.submitted),
            _between(times.submitted, times.scheduled),
            _between(times.scheduled, times.first_token),
            _between(times.first_token, times.last_token),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class WorkRecord:
    """What models have done for a request; of several answers and inputs, all together.

    Attributes:
        model: The name that it is answered under; None where no model was found for it.
        operation: What it asks of the model, by OpenTelemetry's words: "chat", "text_completion",
            "embeddings", "score"; None where nothing was asked.
        params: How its answers are sampled.
        prompt_tokens: Tokens of its prompts, and of whatever else was read.
        cached_tokens: Those of them that came from the prefix cache.
        output_tokens: Tokens of its answers.
        reasoning_tokens: Those of them that were spent on reasoning.
        unused_prompt_tokens: What other models of a cascade read, whose answers nobody got.
        unused_output_tokens: What they wrote.
        finish_reasons: Of each answer that was completed.
        times: When what happened: what was first of several answers, and the last token of all.
        first_answer: When the first piece of an answer was there for whoever reads it, on the
            monotonic clock; None where they are told as a whole.
        outcome: How its answers ended, the worst of them; None where there have been none.
        failure: Why, where one has failed.
        reading: What ends its streams that haven't.
    """

    model: str | None = None
    operation: str | None = None
    params: SamplingParams | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    unused_prompt_tokens: int = 0
    unused_output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    times: AnswerTimes | None = None
    first_answer: float | None = None
    outcome: Outcome | None = None
    failure: Exception | None = None
    reading: set[Interruption] = field(default_factory=set)

    @property
    def timings(self) -> Timings:
        """What took how long."""
        return Timings.of(self.times)

    def note_usage(self, usage: Usage, *, with_unused: bool) -> None:
        """An answer has ended, and this is what it took."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.output_tokens += usage.output_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        if with_unused and isinstance(usage, CascadeUsage):
            self.unused_prompt_tokens += sum(each.prompt_tokens for each in usage.unused)
            self.unused_output_tokens += sum(each.output_tokens for each in usage.unused)
        if usage.times is not None:
            self.times = _all_of(self.times, usage.times)

    def note_outcome(self, outcome: Outcome) -> None:
        """An answer has ended so."""
        if self.outcome is None or _WORST_FIRST.index(outcome) < _WORST_FIRST.index(self.outcome):
            self.outcome = outcome

    def interrupt(self, error: Exception) -> None:
        """End its streams with an error, as if what they come from had failed."""
        for interruption in list(self.reading):
            interruption.interrupt(error)

    async def interruptible(self, stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """A stream that no model writes, and that `interrupt` ends all the same."""
        interruption = Interruption()
        self.reading.add(interruption)
        try:
            async with contextlib.aclosing(interruption.read(stream)) as items:
                async for item in items:
                    yield item
        finally:
            self.reading.discard(interruption)

    def note_failure(self, error: Exception) -> None:
        """An answer has failed."""
        self.failure = self.failure or error
        self.note_outcome("timeout" if isinstance(error, RequestTimeoutError) else "failed")


class ObservedService(ForwardingService):
    """Notes what is asked of a model, for one request.

    Args:
        found: The model; its name may change until the answer begins.
        record: Where that is noted.
        log_prompts: Whether prompts and answers go to the log.
    """

    def __init__(self, found: Found, record: WorkRecord, *, log_prompts: bool = False) -> None:
        self._found = found
        self._log_prompts = log_prompts
        self._target = found.service
        self._record = record
        self._note_model(record)

    def _note_model(self, record: WorkRecord) -> None:
        """Which model answers, whatever name led to it."""
        record.model = self._found.model or self._found.name

    @property
    def target(self) -> Service:
        """The model."""
        return self._target

    async def chat(self, work: ChatWork, context: RequestContext = NO_CONTEXT) -> RunningChat:
        """See `Service`."""
        log = self._begin("chat", work)
        self._record.params = work.params
        chat = await self._target.chat(work, context)
        self._note_model(self._record)
        return _ObservedChat(chat, work.params.n, self._record, log)

    async def complete(
        self, work: CompletionWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[RunningText]:
        """See `Service`."""
        log = self._begin("text_completion", work)
        self._record.params = work.params
        texts = await self._target.complete(work, context)
        self._note_model(self._record)
        return [
            _ObservedText(
                text, work.params.n, self._record, log and AnswerLog(), is_first=not place
            )
            for place, text in enumerate(texts)
        ]

    async def embed(
        self, work: EmbedWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[Embedding]:
        """See `Service`."""
        self._begin("embeddings", work)
        with self._computing():
            vectors = await self._target.embed(work, context)
        self._note_read(vectors)
        return vectors

    async def score(
        self, work: ScoreWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[PairScore]:
        """See `Service`."""
        self._begin("score", work)
        with self._computing():
            scores = await self._target.score(work, context)
        self._note_read(scores)
        return scores

    def _note_read(self, results: Sequence[Embedding | PairScore]) -> None:
        """Inputs have been read, and computed."""
        record = self._record
        record.prompt_tokens += sum(result.tokens for result in results)
        if results and (times := results[0].times) is not None:
            record.times = _all_of(record.times, times)

    def _begin(
        self, operation: str, work: ChatWork | CompletionWork | EmbedWork | ScoreWork
    ) -> AnswerLog | None:
        """Notes what is asked; returns what logs the answer, where that is wanted."""
        self._record.operation = operation
        if not self._log_prompts:
            return None
        log_prompt(work)
        return AnswerLog()

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        record = self._record
        try:
            yield
        except CaudalError:
            raise  # who answers it says what that means
        except BaseException as error:
            if isinstance(error, Exception):
                record.note_failure(error)
            else:
                record.note_outcome("cancelled")
            raise
        record.note_outcome("ok")


class _ObservedAnswer(Generic[D]):
    """A running answer; what it took is noted when it has ended, or is given up.

    Args:
        answer: The answer.
        count: How many sequences it has.
        record: Where that is noted.
        log: Where it is written, if anywhere.
        is_first: Whether it is the request's first, which tells what all have in common.
    """

    def __init__(
        self,
        answer: RunningAnswer,
        stream: Callable[[], AsyncGenerator[list[D], None]],
        count: int,
        record: WorkRecord,
        log: AnswerLog | None,
        *,
        is_first: bool = True,
    ) -> None:
        self._answer = answer
        self._log = log
        self._stream: Callable[[], AsyncGenerator[list[D], None]] = stream
        self._count = count
        self._record = record
        self._is_first = is_first
        self._reasons: list[str] = []
        self._noted = False
        self._interruption = Interruption()
        record.reading.add(self._interruption)

    @property
    def prompt(self) -> SubmittedPrompt:
        """See `RunningAnswer`."""
        return self._answer.prompt

    @property
    def prompt_tokens(self) -> Sequence[OutputToken]:
        """See `RunningAnswer`."""
        return self._answer.prompt_tokens

    @property
    def usage(self) -> Usage:
        """See `RunningAnswer`."""
        return self._answer.usage

    async def deltas(self) -> AsyncGenerator[list[D], None]:
        """See `RunningText.deltas`."""
        record, reasons, log = self._record, self._reasons, self._log
        try:
            async with contextlib.aclosing(self._interruption.read(self._stream())) as stream:
                async for deltas in stream:
                    if record.first_answer is None:
                        record.first_answer = time.monotonic()
                    for delta in deltas:
                        if delta.finish_reason is not None:
                            reasons.append(delta.finish_reason)
                        if log is not None:
                            log.add(delta)
                    yield deltas
        except Exception as error:
            self._note(error)
            raise
        finally:
            self._note()

    async def aclose(self) -> None:
        """See `RunningAnswer`."""
        try:
            await self._answer.aclose()
        finally:
            self._note()

    def _note(self, error: Exception | None = None) -> None:
        if self._noted:
            return
        self._noted = True
        record, reasons = self._record, self._reasons
        record.reading.discard(self._interruption)
        record.note_usage(self._answer.usage, with_unused=self._is_first)
        record.finish_reasons += reasons
        if self._log is not None:
            self._log.write()
        if error is not None and error is not self._interruption.error:
            record.note_failure(error)
        elif len(reasons) < self._count:
            record.note_outcome("cancelled")
        else:
            record.note_outcome("length" if "length" in reasons else "stop")


class _ObservedText(_ObservedAnswer[Delta]):
    """A prompt that is continued."""

    def __init__(
        self,
        text: RunningText,
        count: int,
        record: WorkRecord,
        log: AnswerLog | None,
        *,
        is_first: bool,
    ) -> None:
        super().__init__(text, text.deltas, count, record, log, is_first=is_first)


class _ObservedChat(_ObservedAnswer[ChatDelta]):
    """A conversation that is answered."""

    def __init__(
        self, chat: RunningChat, count: int, record: WorkRecord, log: AnswerLog | None
    ) -> None:
        super().__init__(chat, chat.deltas, count, record, log)
        self._chat = chat

    @property
    def ignored(self) -> Sequence[str]:
        """See `RunningChat`."""
        return self._chat.ignored

    async def collect(self) -> list[CompleteAnswer]:
        """See `RunningChat`."""
        try:
            answers = await self._chat.collect()
        except Exception as error:
            await self._chat.aclose()  # which tells what it has taken
            self._note(error)
            raise
        self._reasons += (answer.finish_reason for answer in answers)
        if self._log is not None:
            self._log.set(answers)
        self._note()
        return answers


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(end - begin, 0.0)


def _all_of(one: AnswerTimes | None, other: AnswerTimes) -> AnswerTimes:
    """The times of several answers together: the first of each, and the last token of all."""
    if one is None:
        return other
    return AnswerTimes(
        min(one.begun, other.begun),
        min(one.submitted, other.submitted),
        _picked(min, one.scheduled, other.scheduled),
        _picked(min, one.first_token, other.first_token),
        _picked(max, one.last_token, other.last_token),
    )


def _picked(
    pick: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return pick(one, other)
