"""The engine: requests in, one iteration at a time, updates of their sequences out.

Plain, single-threaded Python. `async_engine.py` puts it in a thread for servers; the library and
benchmarks call `step` themselves.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

from caudal.backends.executor import Executor, ExecutorInfo, blocks_of_window
from caudal.engine.adapters import Adapters
from caudal.engine.answer import grow
from caudal.engine.arriving import Arriving
from caudal.engine.checks import check_request, max_output_tokens
from caudal.engine.config import EngineConfig
from caudal.engine.counters import BatchCounts, Counters
from caudal.engine.deadlines import Deadlines
from caudal.engine.drafting.drafting import Drafting
from caudal.engine.drafting.proposer import Proposer
from caudal.engine.grammar import Grammar, Grammars, MatcherError, NoGrammars
from caudal.engine.iteration import IterationRunner
from caudal.engine.live import LiveRequests
from caudal.engine.memory import Memory
from caudal.engine.request import FinishReason, Generate, Missed, Request, SequenceUpdate
from caudal.engine.scheduler import Scheduler
from caudal.engine.sequence import Sequence, SequenceGroup
from caudal.engine.shares import share_of_queue
from caudal.engine.stats import EngineStats, PoolUse
from caudal.engine.tiers.figures import PrefixCacheFigures, PrefixCacheReset, SpaceChoice
from caudal.engine.tiers.opening import open_tier
from caudal.engine.tiers.overview import figures_of, reset
from caudal.engine.tiers.second_tier import SecondTier
from caudal.engine.turns import NoTurns, Turns
from caudal.errors import ParameterError, QueueFullError

PROMPT_TOKENS = 32
"""An iteration with so many tokens more than sequences says what computing prompts takes."""

READING_SECONDS = 0.001
"""So long the engine sleeps while all that it has to do waits for a prefix that is being read."""

SAVING_SECONDS = 0.005
"""So long it does while it has nothing to do but to save prefixes."""


class Engine:
    """Queues requests, runs them on an executor in shared batches, and reports what came out.

    Not thread-safe: call from one thread at a time.

    Args:
        executor: Runs the batches. The engine owns it and closes it.
        config: Limits and policies.
        eos_token_ids: Tokens that end an answer unless a request ignores them.
        grammars: Makes the grammars that requests ask for.
        clock: Seconds that never go back; tests pass their own.
        turns: Whose turn it is to compute; None: nobody else computes.
        suppressed_token_ids: Tokens that no answer has, whatever a request says.
        proposer: What guesses tokens where `EngineConfig.speculative` says `draft` or `mtp`. The
            engine owns it and closes it.

    Attributes:
        adapters: Those of the executor; they are loaded and unloaded between iterations.
        config: Limits and policies.
        grammars: Makes the grammars that requests ask for.

    Raises:
        ParameterError: The executor's pools cannot hold one sequence of `max_model_len`.
    """

    def __init__(
        self,
        executor: Executor,
        config: EngineConfig,
        eos_token_ids: frozenset[int],
        grammars: Grammars | None = None,
        clock: Callable[[], float] = time.monotonic,
        turns: Turns | None = None,
        suppressed_token_ids: frozenset[int] = frozenset(),
        proposer: Proposer | None = None,
    ) -> None:
        info = executor.info
        self.config = config
        self.grammars = NoGrammars() if grammars is None else grammars
        self._executor = executor
        self._info = info
        self._eos_token_ids = eos_token_ids
        self._suppressed_token_ids = suppressed_token_ids
        self._clock = clock
        self._turns = NoTurns() if turns is None else turns
        self._memory = Memory(
            info.num_blocks,
            info.block_size,
            prefix_cache=config.prefix_cache and not config.encoder,
            windows=info.windows,
            num_slots=info.num_slots,
            checkpoints=config.checkpoints,
        )
        if self._memory.pool.blocks_for(config.max_model_len) > info.num_blocks:
            raise ParameterError(
                "max_model_len",
                f"max_model_len ({config.max_model_len}) must not exceed the "
                f"{info.num_blocks * info.block_size} tokens that the KV memory holds.",
            )
        for pool in info.windows:
            whole = self._memory.pool.blocks_for(config.max_model_len)
            if pool.num_blocks < min(blocks_of_window(pool.window, info.block_size), whole):
                raise ParameterError(
                    "kv_memory",
                    f"A pool of {pool.num_blocks} blocks doesn't hold a window of {pool.window}.",
                )
        self._counters = Counters(clock())
        self.adapters = Adapters(executor, hashes=config.keeps_prefixes)
        self._tier = None
        if config.keeps_prefixes:
            self._tier = open_tier(executor, self._memory, self.adapters, config)
        self._scheduler = Scheduler(config, self._memory, self._tier)
        self._drafting = Drafting(config.speculative, proposer, self._memory, info.vocab_size)
        self._live = LiveRequests(
            self._scheduler, self._counters, self.adapters, self._drafting, clock
        )
        self._runner = IterationRunner(
            executor,
            self._memory,
            self._scheduler,
            self._live,
            self._drafting,
            self._counters,
            clock,
            self._turns,
        )
        self._arrivals = 0
        self._stalled_at: float | None = None
        self._has_to_save = False
        self._deadlines = Deadlines(config)

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
        return len(self._live) > 0 or self._live.has_updates

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def check(self, request: Request, arriving: Arriving | None = None) -> None:
        """Raise what `submit` would raise, and change nothing. Safe to call from other threads.

        Whether a grammar can be made of what the request asks for is not found out.

        Args:
            request: The request.
            arriving: Requests that were checked and are not accepted yet; they count as waiting.

        Raises:
            ContextOverflowError, ParameterError: See `check_request`.
            QueueFullError: As many requests wait as may, of all or of its tenant.
            UnknownAdapterError: There is no adapter of the number asked for, or not any more.
            ValueError: A live request has the same id.
        """
        check_request(request, self.config, self._info.vocab_size)
        self.check_state(request, arriving)

    def check_state(self, request: Request, arriving: Arriving | None = None) -> None:
        """The part of `check` that may turn out otherwise a moment later."""
        if request.request_id in self._live:
            raise ValueError(f"request id {request.request_id!r} is in use")
        self.adapters.check(request.adapter)
        self._check_room(request, Arriving() if arriving is None else arriving)

    def _check_room(self, request: Request, arriving: Arriving) -> None:
        """Raise `QueueFullError` where the request's tenant has as much waiting as it may: of its
        own limit, or where the queue is full, of its share (`share_of_queue`).
        """
        lanes, most, own_most = self._scheduler.lanes, self.config.max_queue, request.max_waiting
        queued = lanes.num_new + arriving.total - max(0, lanes.num_free)
        if queued < 0 or (own_most is None and queued < most):
            return
        tenant = request.tenant
        own = min(queued, lanes.num_new_of(tenant) + arriving.count(tenant))
        weights = lanes.waiting_weights() | arriving.weights()
        if own_most is not None and own >= own_most:
            all_weights = sum((weights | {tenant: request.weight}).values())
            ahead = math.ceil(own_most * all_weights / request.weight)
            after = self._counters.retry_after(ahead, self._clock())
            raise QueueFullError(own_most, after, "Your queue", limit="max_waiting")
        if queued >= most and own >= share_of_queue(most, tenant, request.weight, weights):
            raise QueueFullError(most, self._counters.retry_after(most, self._clock()))

    def submit(self, request: Request) -> None:
        """Queue a request, once its grammar is made.

        Raises:
            ContextOverflowError, ParameterError, QueueFullError, UnknownAdapterError, ValueError:
                See `check`.
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
        group = SequenceGroup(
            request,
            arrival=self._arrivals,
            submitted=submitted if request.arrived is None else request.arrived,
            seed=seed,
            max_output_tokens=max_output_tokens(request, self.config.max_model_len),
            eos_token_ids=self._eos_token_ids,
            suppressed_token_ids=self._suppressed_token_ids,
            constrained=grammar is not None,
            jump_ahead=self.config.jump_ahead,
            adapter=self.adapters.enter(request.adapter),
        )
        matcher = None if grammar is None else grammar.matcher()
        seq = Sequence(group, list(range(work.num_sequences)), matcher)
        for index in seq.branches:
            group.sequences[index] = seq
        self._live.add(group)
        self._scheduler.add(seq)
        self._deadlines.add(group)
        try:
            grow(seq, ())
        except MatcherError as error:
            self._live.fail([seq], str(error))

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
        return self._live.cancel(request_id, index, reason)

    def cancel_all(self) -> None:
        """Cancel every request that lives."""
        self._live.cancel_all()

    def step(self) -> list[SequenceUpdate]:
        """Run one iteration.

        Returns:
            What became of the sequences that ran or ended since the last call, in no particular
            order but each sequence's own. At most one update per sequence.
        """
        now = self._clock()
        for group, limit, what in self._deadlines.expire(now):
            after = self._counters.retry_after(self._scheduler.lanes.num_new, now)
            missed = Missed(limit, after)
            self._live.stop(group, FinishReason.TIMEOUT, error=what, missed=missed)
        lanes = self._scheduler.lanes
        self._drafting.draft(lanes.answering, lanes.room_for_guesses)
        if self._tier is None:
            self._runner.run(self._scheduler.schedule(now))
        else:
            self._step_with(self._tier, now)
        return self._live.take_updates()

    def _step_with(self, tier: SecondTier, now: float) -> None:
        """Run one iteration, with prefixes that come from beyond the pools."""
        counters = self._counters
        tier.advance(counters.last_batch[2])
        planned = self._scheduler.schedule(now)
        # Who waits for what is being read needn't be asked all the time.
        self._stalled_at = now if not planned and tier.is_reading else None
        iterations = counters.iterations
        self._runner.run(planned)
        sequences, tokens, seconds = counters.last_batch
        if counters.iterations > iterations and tokens - sequences >= PROMPT_TOKENS:
            tier.observe(tokens, seconds)

    def idle_seconds(self) -> float | None:
        """How long `step` has nothing to do: 0 for work right now, None until a submission."""
        if self._live.has_updates:
            return 0.0
        if self._tier is not None and not len(self._live):
            return SAVING_SECONDS if self._has_to_save else None
        now = self._clock()
        if self._stalled_at is not None and now - self._stalled_at < READING_SECONDS:
            return READING_SECONDS
        seconds = self._scheduler.seconds_until_due(now)
        due = self._deadlines.earliest
        if seconds is None or due is None:
            return seconds
        return max(0.0, min(seconds, due - now))

    def rest(self) -> None:
        """Tell others that take turns not to wait for the next iteration: nothing asks for one."""
        self._turns.leave()
        if self._tier is not None and not self._tier.is_reading:
            self._has_to_save = self._tier.save()

    def batches(self) -> BatchCounts:
        """What batches have been like. Safe to call from other threads."""
        return self._counters.batches

    def waiting_of_tenants(self) -> dict[str | None, int]:
        """How many sequences of each tenant wait. Safe to call from other threads."""
        return self._scheduler.lanes.waiting_of_tenants()

    def prefix_cache(self) -> PrefixCacheFigures:
        """What the prefix cache holds and has done."""
        cache = self._memory.cache
        return figures_of(
            cache, self._info, self._scheduler.starting.cache_counts, self.adapters, self._tier
        )

    def reset_prefix_cache(
        self, choice: SpaceChoice
    ) -> tuple[PrefixCacheReset, threading.Event | None]:
        """Give up what is cached, but for what sequences that run use.

        Returns:
            What became of it, and what is set once it is gone from the disk, where there is one.
        """
        return reset(self._memory.cache, choice, self.adapters, self._tier)

    def stats(self) -> EngineStats:
        """A snapshot of what the engine holds and has done."""
        pool = self._memory.pool
        lanes, starting = self._scheduler.lanes, self._scheduler.starting
        counters = self._counters
        sequences, tokens, seconds = counters.last_batch
        return EngineStats(
            waiting=lanes.num_waiting,
            running=lanes.num_running,
            blocks_total=pool.num_blocks,
            blocks_free=pool.num_free,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
            windows={
                pool.window: PoolUse.of(blocks)
                for pool, blocks in zip(self._info.windows, self._memory.windows, strict=True)
            },
            slots=None if self._memory.slots is None else PoolUse.of(self._memory.slots),
            prompt_tokens=starting.cache_counts.prompt_tokens,
            cache_hit_tokens=starting.cache_counts.hit_tokens,
            lost_tokens=starting.lost_tokens.copy(),
            generated_tokens=counters.generated_tokens,
            preemptions=self._scheduler.growing.num_preemptions,
            iterations=counters.iterations,
            batched_tokens=counters.batched_tokens,
            executor_failures=counters.failures,
            finished=counters.finished.copy(),
            last_batch_sequences=sequences,
            last_batch_tokens=tokens,
            last_batch_seconds=seconds,
            drafts=self._drafting.counts,
            adapters=self.adapters.users,
            tiers=None if self._tier is None else self._tier.stats(),
        )

    def close(self) -> None:
        """End everything that lives and close the executor. Safe to call twice."""
        try:
            self.cancel_all()
            if self._tier is not None:
                self._tier.close()
        finally:
            self._drafting.close()
            self._executor.close()
