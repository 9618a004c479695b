"""The engine: requests in, one iteration at a time, news about their sequences out.

Plain, single-threaded Python. `async_engine.py` puts it in a thread for servers; the library and
benchmarks call `step` themselves.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf

from caudal.backends.base import (
    Batch,
    Executor,
    ExecutorInfo,
    SampledToken,
    SequenceStep,
    StepResult,
)
from caudal.engine.answer import grow, rows_to_draw
from caudal.engine.checks import check_request, check_result, max_output_tokens
from caudal.engine.config import EngineConfig
from caudal.engine.counters import Counters
from caudal.engine.deadlines import Deadlines
from caudal.engine.grammar import Grammar, Grammars, MatcherError, NoGrammars
from caudal.engine.memory import KVMemory
from caudal.engine.request import FinishReason, Generate, Request, SequenceUpdate
from caudal.engine.scheduler import Scheduler
from caudal.engine.sequence import RequestState, Sequence
from caudal.engine.stats import EngineStats
from caudal.errors import ParameterError, QueueFullError

logger = logging.getLogger(__name__)


class Engine:
    """Queues requests, runs them on an executor in shared batches, and reports what came out.

    Not thread-safe: call from one thread at a time.

    Args:
        executor: Runs the batches. The engine owns it and closes it.
        config: Limits and policies.
        eos_token_ids: Tokens that end an answer unless a request ignores them.
        grammars: Makes the grammars that requests ask for.
        clock: Seconds that never go back; tests pass their own.

    Attributes:
        config: Limits and policies.
        grammars: Makes the grammars that requests ask for.

    Raises:
        ParameterError: The executor's pool cannot hold one sequence of `max_model_len`.
    """

    def __init__(
        self,
        executor: Executor,
        config: EngineConfig,
        eos_token_ids: frozenset[int],
        grammars: Grammars | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        info = executor.info
        self.config = config
        self.grammars = NoGrammars() if grammars is None else grammars
        self._executor = executor
        self._info = info
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._memory = KVMemory(
            info.num_blocks,
            info.block_size,
            prefix_cache=config.prefix_cache and not config.encoder,
        )
        if self._memory.pool.blocks_for(config.max_model_len) > info.num_blocks:
            raise ParameterError(
                "max_model_len",
                f"max_model_len ({config.max_model_len}) must not exceed the "
                f"{info.num_blocks * info.block_size} tokens that the KV memory holds.",
            )
        self._scheduler = Scheduler(config, self._memory)
        self._requests: dict[str, RequestState] = {}
        self._arrivals = 0
        self._deadlines = Deadlines(config)
        self._news: list[SequenceUpdate] = []
        self._counters = Counters(clock())

    @property
    def info(self) -> ExecutorInfo:
        """The executor's geometry and facts."""
        return self._info

    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._clock()

    @property
    def has_work(self) -> bool:
        """Whether any request lives or any update is still to be handed out."""
        return bool(self._requests or self._news)

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def check(self, request: Request, arriving: int = 0) -> None:
        """Raise what `submit` would raise, and change nothing. Safe to call from other threads.

        Whether a grammar can be made of what the request asks for is not found out.

        Args:
            request: The request.
            arriving: Requests that were checked and are not accepted yet; they count as waiting.

        Raises:
            ContextOverflowError, ParameterError: See `check_request`.
            QueueFullError: As many requests wait as may.
            ValueError: A live request has the same id.
        """
        check_request(request, self.config, self._info.vocab_size)
        self.check_queue(request, arriving)

    def check_queue(self, request: Request, arriving: int = 0) -> None:
        """The part of `check` that may turn out otherwise a moment later."""
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id!r} is in use")
        queued = self._scheduler.num_new + arriving - max(0, self._scheduler.free_places)
        if queued >= self.config.max_queue:
            after = self._counters.retry_after(self.config.max_queue, self._clock())
            raise QueueFullError(self.config.max_queue, after)

    def submit(self, request: Request) -> None:
        """Queue a request, once its grammar is made.

        Raises:
            ContextOverflowError, ParameterError, QueueFullError, ValueError: See `check`.
            ParameterError: What its answer is to be held to can't be enforced.
        """
        submitted = self._clock()
        self.check(request)
        work = request.constrained
        grammar = None if work is None else self.grammars.compile_now(work)
        self.accept(request, submitted, grammar)

    def accept(self, request: Request, submitted: float, grammar: Grammar | None) -> None:
        """Queue a request that `check` has passed.

        Args:
            request: The request.
            submitted: When it was submitted, on the engine's clock; its time counts from there
                unless it says when it arrived.
            grammar: What was made of its work, where that `is_constrained`.
        """
        work = request.work
        seed = work.params.seed if isinstance(work, Generate) else 0  # nothing is drawn
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little")
        self._arrivals += 1
        state = RequestState(
            request,
            arrival=self._arrivals,
            submitted=submitted if request.arrived is None else request.arrived,
            seed=seed,
            room=max_output_tokens(request, self.config.max_model_len),
            eos_token_ids=self._eos_token_ids,
            constrained=grammar is not None,
            jump_ahead=self.config.jump_ahead,
        )
        matcher = None if grammar is None else grammar.matcher()
        seq = Sequence(state, list(range(work.num_sequences)), matcher)
        for index in seq.branches:
            state.sequences[index] = seq
        self._requests[request.request_id] = state
        self._scheduler.add(seq)
        self._deadlines.add(state)
        try:
            grow(seq, ())
        except MatcherError as error:
            self._fail([seq], str(error))

    def cancel(
        self,
        request_id: str,
        index: int | None = None,
        reason: FinishReason = FinishReason.CANCELLED,
    ) -> bool:
        """End a request, or one of its sequences, now; its last update comes with the next step.

        Args:
            request_id: The request.
            index: Which of its sequences; None for all.
            reason: What to report: `STOP` where a stop string was found in the text.

        Returns:
            Whether there was anything to end.
        """
        state = self._requests.get(request_id)
        if state is None or (index is not None and index not in state.sequences):
            return False
        now = self._clock()
        for each in list(state.sequences) if index is None else [index]:
            self._end_branch(state, each, reason, now)
        return True

    def cancel_all(self) -> None:
        """Cancel every request that lives."""
        for request_id in list(self._requests):
            self.cancel(request_id)

    def step(self) -> list[SequenceUpdate]:
        """Run one iteration.

        Returns:
            What became of the sequences that ran or ended since the last call, in no particular
            order but each sequence's own. At most one update per sequence.
        """
        now = self._clock()
        for state, what in self._deadlines.expire(now):
            for index in list(state.sequences):
                self._end_branch(state, index, FinishReason.TIMEOUT, now, what)
        batch = self._scheduler.schedule(now)
        if batch:
            self._run(batch)
        news, self._news = self._news, []
        return news

    def idle_seconds(self) -> float | None:
        """How long `step` has nothing to do: 0 for work right now, None until a submission."""
        if self._news:
            return 0.0
        now = self._clock()
        seconds = self._scheduler.seconds_until_due(now)
        due = self._deadlines.earliest
        if seconds is None or due is None:
            return seconds
        return max(0.0, min(seconds, due - now))

    def stats(self) -> EngineStats:
        """A snapshot of what the engine holds and has done."""
        pool = self._memory.pool
        scheduler = self._scheduler
        counters = self._counters
        sequences, tokens, seconds = counters.last_batch
        return EngineStats(
            waiting=scheduler.num_waiting,
            running=scheduler.num_running,
            blocks_total=pool.num_blocks,
            blocks_free=pool.num_free,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
            prompt_tokens=scheduler.prompt_tokens,
            cache_hit_tokens=scheduler.cache_hit_tokens,
            generated_tokens=counters.generated_tokens,
            preemptions=scheduler.num_preemptions,
            iterations=counters.iterations,
            batched_tokens=counters.batched_tokens,
            executor_failures=counters.failures,
            finished=counters.finished.copy(),
            last_batch_sequences=sequences,
            last_batch_tokens=tokens,
            last_batch_seconds=seconds,
        )

    def close(self) -> None:
        """End everything that lives and close the executor. Safe to call twice."""
        try:
            self.cancel_all()
        finally:
            self._executor.close()

    # One iteration

    def _run(self, sequences: list[Sequence]) -> None:
        sequences, steps = self._prepare(sequences)
        if not steps:
            return
        copies = [seq.table.copy for seq in sequences if seq.table.copy is not None]
        began = self._clock()
        try:
            # There is next to nothing that could be done between launching and collecting: what the
            # next batch is depends on what comes out of this one.
            results = self._executor.execute(Batch(steps, copies))
            if len(results) != len(steps):
                raise RuntimeError(f"{len(results)} results for {len(steps)} sequences")
        except Exception as error:  # whatever it was, the other requests go on
            logger.exception("the executor failed on a batch of %d sequences", len(sequences))
            self._counters.failures += 1
            self._fail(sequences, f"{type(error).__name__}: {error}")
            return
        now = self._clock()
        tokens = sum([seq.planned for seq in sequences])
        self._counters.count_batch(len(sequences), tokens, now - began)
        for seq, step, result in zip(sequences, steps, results, strict=True):
            try:
                check_result(step, result, self._info.vocab_size)
            except ValueError as error:
                self._fail([seq], str(error))
                continue
            self._commit(seq, step, result, now)

    def _prepare(self, planned: list[Sequence]) -> tuple[list[Sequence], list[SequenceStep]]:
        """Steps for those that can go on; ends those whose grammar has come to its end."""
        sequences, steps = [], []
        for seq in planned:
            try:
                rows = rows_to_draw(seq)
            except MatcherError as error:
                self._fail([seq], str(error))
                continue
            if rows is None:
                self._end(seq, FinishReason.STOP, self._clock())
                continue
            sequences.append(seq)
            steps.append(seq.step(rows))
        return sequences, steps

    def _fail(self, sequences: Iterable[Sequence], error: str) -> None:
        now = self._clock()
        for seq in sequences:
            self._end(seq, FinishReason.FAILED, now, error=error, keep=False)

    def _commit(self, seq: Sequence, step: SequenceStep, result: StepResult, now: float) -> None:
        """Take in what one sequence's step produced."""
        state = seq.state
        table = seq.table
        scored = state.prompt_scores
        if scored is not None and result.scores:
            # After a preemption some positions are computed, and scored, a second time.
            scored.extend(result.scores[len(scored) - table.length :])
        table.length += seq.planned
        if result.pooled is not None:
            state.take_pooled(result.pooled, table.length)
        if table.copy is not None:
            self._memory.settle(table)
        drawn = result.samples
        if drawn and len(seq.branches) > 1:
            self._publish(seq)  # what forks share is in the tree before
            for twin, sampled in zip(self._fork(seq), drawn, strict=True):
                self._grow(twin, step, (sampled,), now)
        elif drawn:
            self._grow(seq, step, drawn, now)
        elif table.length == len(seq.tokens):  # nothing was to be generated
            reason = FinishReason.LENGTH if state.pool is None else FinishReason.STOP
            self._end(seq, reason, now)
        else:
            self._publish(seq)

    def _fork(self, seq: Sequence) -> list[Sequence]:
        """Let the sequences that one prompt stood for go their own ways."""
        indices = seq.branches
        seq.branches = indices[:1]
        family = [seq]
        for index in indices[1:]:
            twin = seq.fork(index, self._memory.fork(seq.table))
            seq.state.sequences[index] = twin
            self._scheduler.join(twin)
            family.append(twin)
        return family

    def _grow(
        self, seq: Sequence, step: SequenceStep, drawn: SequenceOf[SampledToken], now: float
    ) -> None:
        """Let an answer go on by the tokens that count of those drawn in a step."""
        state = seq.state
        if state.first_token is None:
            state.first_token = now
        try:
            tokens, reason, stop_token = grow(seq, drawn)
        except MatcherError as error:
            self._fail([seq], str(error))
            return
        self._counters.generated_tokens += len(tokens)
        if step.proposed:  # what was computed for other tokens than those of the answer is void
            void = len(step.samples) - len(drawn)
            self._memory.trim(seq.table, min(seq.table.length - void, len(seq.tokens)))
        if reason is not None:
            self._end(seq, reason, now, tokens=tokens, stop_token=stop_token)
            return
        if seq.planned > 1:
            self._publish(seq)
        self._news.append(state.update(seq.index, now, tokens))

    def _publish(self, seq: Sequence) -> None:
        self._memory.publish(seq.table, seq.state.space, seq.keys)

    # Ends

    def _end(
        self,
        seq: Sequence,
        reason: FinishReason,
        now: float,
        *,
        tokens: SequenceOf[SampledToken] = (),
        stop_token: int | None = None,
        error: str | None = None,
        keep: bool = True,
    ) -> None:
        """End a sequence and all that it stands for."""
        self._scheduler.end(seq, keep=keep)
        for index in seq.branches:
            update = seq.state.update(index, now, tokens, reason, stop_token, error)
            self._news.append(update)
            self._forget(seq.state, index, reason)

    def _end_branch(
        self,
        state: RequestState,
        index: int,
        reason: FinishReason,
        now: float,
        error: str | None = None,
    ) -> None:
        """End one of a request's sequences, whether it has forked yet or not."""
        seq = state.sequences[index]
        if len(seq.branches) == 1:
            self._end(seq, reason, now, error=error)
        else:
            self._news.append(state.update(index, now, (), reason, None, error))
            seq.branches.remove(index)
            self._forget(state, index, reason)

    def _forget(self, state: RequestState, index: int, reason: FinishReason) -> None:
        self._counters.finished[reason] += 1
        del state.sequences[index]
        if not state.sequences:
            del self._requests[state.request.request_id]
