"""One iteration: what the planned sequences ask is run, and what counts of the outcome taken in."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from caudal.backends.executor import Batch, Executor, SampledToken, SequenceStep, StepResult
from caudal.engine.answer import grow
from caudal.engine.checks import check_result
from caudal.engine.counters import Counters
from caudal.engine.drafting.drafting import Drafting
from caudal.engine.grammar import MatcherError
from caudal.engine.live import LiveRequests
from caudal.engine.memory import Memory
from caudal.engine.request import FinishReason
from caudal.engine.scheduler import Scheduler
from caudal.engine.sequence import Sequence
from caudal.engine.steps import place_step, step_of
from caudal.engine.turns import Turns

logger = logging.getLogger(__name__)


class IterationRunner:
    """Runs what the scheduler has planned.

    Args:
        executor: Runs the batches.
        memory: Where what sequences have computed lives.
        scheduler: Told of sequences that fork.
        live: Told of tokens and ends.
        drafting: Told which guesses were right.
        counters: Count batches and failures.
        clock: The engine's.
        turns: Whose turn it is to compute.
    """

    def __init__(
        self,
        executor: Executor,
        memory: Memory,
        scheduler: Scheduler,
        live: LiveRequests,
        drafting: Drafting,
        counters: Counters,
        clock: Callable[[], float],
        turns: Turns,
    ) -> None:
        self._executor = executor
        self._memory = memory
        self._scheduler = scheduler
        self._live = live
        self._drafting = drafting
        self._counters = counters
        self._clock = clock
        self._turns = turns
        self._has_more_kinds = memory.has_more_kinds
        self._vocab_size = executor.info.vocab_size

    def run(self, planned: SequenceOf[Sequence]) -> None:
        """Run the planned tokens of sequences, if there are any; nothing is raised."""
        sequences, steps = self._prepare(planned)
        if not steps:
            return
        batch = self._batch(sequences, steps)
        self._turns.take()
        began = self._clock()
        try:
            # There is next to nothing that could be done between launching and collecting: what the
            # next batch is depends on what comes out of this one.
            results = self._executor.execute(batch)
            if len(results) != len(steps):
                raise RuntimeError(f"{len(results)} results for {len(steps)} sequences")
        except Exception as error:  # whatever it was, the other requests go on
            logger.exception("the executor failed on a batch of %d sequences", len(sequences))
            self._counters.failures += 1
            self._live.fail(sequences, f"{type(error).__name__}: {error}")
            return
        finally:
            if self._turns.give_back():
                self._executor.rest()
        now = self._clock()
        tokens = sum([seq.planned for seq in sequences])
        self._counters.count_batch(len(sequences), tokens, now - began)
        if all(
            step.context >= len(seq.group.prompt)
            for seq, step in zip(sequences, steps, strict=True)
        ):
            self._drafting.observe(len(sequences), tokens - len(sequences), now - began)
        for seq, step, result in zip(sequences, steps, results, strict=True):
            try:
                check_result(step, result, self._vocab_size)
            except ValueError as error:
                self._live.fail([seq], str(error))
                continue
            self._commit(seq, step, result, now)

    def _prepare(self, planned: SequenceOf[Sequence]) -> tuple[list[Sequence], list[SequenceStep]]:
        """Steps for those that can go on; ends those whose grammar has come to its end."""
        sequences, steps = [], []
        sees_states = self._drafting.sees_states
        for seq in planned:
            try:
                step = step_of(seq)
            except MatcherError as error:
                self._live.fail([seq], str(error))
                continue
            if step is None:
                self._live.end(seq, FinishReason.STOP, self._clock())
                continue
            if sees_states and seq.group.speculates:
                step.states = len(step.tokens)
            sequences.append(seq)
            steps.append(step)
        return sequences, steps

    def _batch(self, sequences: SequenceOf[Sequence], steps: SequenceOf[SequenceStep]) -> Batch:
        """The steps, with where their sequences have what they remember."""
        copies = [seq.memory.copy for seq in sequences if seq.memory.copy is not None]
        if not self._has_more_kinds:
            return Batch(steps, copies)
        for seq, step in zip(sequences, steps, strict=True):
            place_step(step, seq.memory)
        window_copies = [
            [table.copy for table in tables if table.copy is not None]
            for tables in zip(*(seq.memory.windows for seq in sequences), strict=True)
        ]
        return Batch(steps, copies, window_copies if any(window_copies) else ())

    def _commit(self, seq: Sequence, step: SequenceStep, result: StepResult, now: float) -> None:
        """Take in what one sequence's step produced."""
        group = seq.group
        held = seq.memory
        scored = group.prompt_scores
        if scored is not None and result.scores:
            # After a preemption some positions are computed, and scored, a second time.
            scored.extend(result.scores[len(scored) - held.length :])
        if result.states is not None:
            # What was computed of proposed tokens that don't count is no state of the sequence.
            void = len(step.samples) - len(result.samples) if step.proposed else 0
            self._drafting.saw(seq, held.length, result.states[: len(step.tokens) - void])
        held.length += seq.planned
        if result.pooled is not None:
            group.take_pooled(result.pooled, held.length)
        if held.copy is not None or self._has_more_kinds:
            self._memory.settle(held, proposed=step.proposed > 0)
        drawn = result.samples
        if drawn and len(seq.branches) > 1:
            self._publish(seq)  # what forks share is in the tree before
            for twin, sampled in zip(self._fork(seq), drawn, strict=True):
                self._grow(twin, step, (sampled,), now)
        elif drawn:
            self._grow(seq, step, drawn, now)
        elif held.length == len(seq.tokens):  # nothing was to be generated
            reason = FinishReason.LENGTH if group.pooling is None else FinishReason.STOP
            self._live.end(seq, reason, now)
        else:
            self._publish(seq)
            self._memory.slide(held)

    def _fork(self, seq: Sequence) -> list[Sequence]:
        """Let the sequences that one prompt stood for go their own ways."""
        indices = seq.branches
        seq.branches = indices[:1]
        family = [seq]
        for index in indices[1:]:
            twin = seq.fork(index, self._memory.fork(seq.memory))
            seq.group.sequences[index] = twin
            self._scheduler.join(twin)
            family.append(twin)
        return family

    def _grow(
        self, seq: Sequence, step: SequenceStep, drawn: SequenceOf[SampledToken], now: float
    ) -> None:
        """Let an answer go on by the tokens that count of those drawn in a step."""
        if seq.group.first_token is None:
            seq.group.first_token = now
        if seq.draft:
            self._judge(seq, step, drawn)
        try:
            tokens, reason, stop_token = grow(seq, drawn)
        except MatcherError as error:
            self._live.fail([seq], str(error))
            return
        if step.proposed:  # what was computed for other tokens than those of the answer is void
            void = len(step.samples) - len(drawn)
            counting = min(seq.memory.length - void, len(seq.tokens))
            self._memory.trim(seq.memory, counting, step.context)
        if reason is not None:
            self._live.end(seq, reason, now, tokens=tokens, stop_token=stop_token)
            return
        if seq.planned > 1:
            self._publish(seq)
        if self._has_more_kinds:
            self._memory.slide(seq.memory)
        self._live.report(seq, tokens, now)

    def _judge(self, seq: Sequence, step: SequenceStep, drawn: SequenceOf[SampledToken]) -> None:
        """See which of a sequence's guesses were right; what is left of them is void."""
        guesses = step.tokens[len(step.tokens) - step.proposed :]
        right = 0
        for sampled, guess in zip(drawn, guesses, strict=False):
            if sampled.token != guess:
                break
            right += 1
        seq.draft = []
        self._drafting.learn(seq, step.proposed, right)

    def _publish(self, seq: Sequence) -> None:
        group = seq.group
        self._memory.publish(seq.memory, group.space, seq.keys, len(group.prompt))
