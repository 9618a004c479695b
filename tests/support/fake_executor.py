"""An executor without a model that notices every mistake in paging.

Its "KV" is the token itself: running a token writes it into its block's slot, and before anything
is sampled the whole context is read back through the block table and must spell the sequence's
true history. The next token is a hash of that history and the sampling row, so that a request's
tokens are the same however it was batched, chunked, cached, preempted or forked, or the test fails.
What was written for proposed tokens that weren't drawn is struck out: nobody may read it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from caudal.backends.executor import (
    Batch,
    Executor,
    ExecutorInfo,
    SampledToken,
    SamplingRow,
    SequenceStep,
    StepResult,
    TokenLogprob,
)
from caudal.models.pooling import PoolingKind
from support.fake_facts import EXECUTOR_FACTS

UNWRITTEN = -1
REJECTED = -2


class PagingFault(BaseException):
    """The engine handed over a batch that is wrong. No `Exception`, lest the engine survive it."""


def _demand(condition: bool, fault: str) -> None:
    if not condition:
        raise PagingFault(fault)


def next_token(history: Sequence[int], seed: int, stream: int, vocab_size: int) -> int:
    """The token that the fake model draws after `history` (without bans)."""
    text = f"{seed}:{stream}:{','.join(map(str, history))}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") % vocab_size


def allows(mask: bytes, token: int) -> bool:
    """Whether a grammar's mask allows a token."""
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def score(history: Sequence[int], target: int) -> float:
    """The fake log-probability of `target` after `history`."""
    text = f"{target}|{','.join(map(str, history))}".encode()
    return -int.from_bytes(hashlib.blake2b(text, digest_size=2).digest(), "little") / 4096


def state(history: Sequence[int]) -> float:
    """The fake hidden state, one number, of the last token of `history`."""
    return score(history, -1)


def pooled_states(prompt: Sequence[int], kind: PoolingKind) -> float:
    """The sum of the fake states of a prompt that a pooling request asks for."""
    states = [state(prompt[: i + 1]) for i in range(len(prompt))]
    if kind == "cls":
        return states[0]
    return sum(states) if kind == "mean" else states[-1]


@dataclass
class FakeExecutor(Executor):
    """Runs batches on token ids instead of tensors.

    Attributes:
        num_blocks: Blocks in the pool.
        block_size: Tokens a block holds.
        vocab_size: Tokens there are.
        fail: Called with each batch; raises to let it fail, with half of its writes done.
        gate: While cleared, holds the executor inside `collect`; `entered` says that it is there.
        batches: Number of tokens of each step of each batch that ran.
        copies: Blocks copied so far.
        accepted: Proposed tokens that were drawn in their places, so far.
        rejected: Proposed tokens that were not.
        closed: Whether `close` was called.
    """

    num_blocks: int = 64
    block_size: int = 4
    vocab_size: int = 50
    fail: Callable[[Batch], None] | None = None
    gate: threading.Event | None = None
    batches: list[list[int]] = field(default_factory=list)
    copies: int = 0
    accepted: int = 0
    rejected: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.slots = [[UNWRITTEN] * self.block_size for _ in range(self.num_blocks)]
        self.entered = threading.Event()
        self._launched: Batch | None = None

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(self.num_blocks, self.block_size, self.vocab_size, EXECUTOR_FACTS)

    def launch(self, batch: Batch) -> None:
        _demand(self._launched is None, "an iteration is running")
        _demand(len(batch.steps) > 0, "an empty batch")
        self._launched = _as_launched(batch)

    def collect(self) -> Sequence[StepResult]:
        batch, self._launched = self._launched, None
        assert batch is not None, "nothing was launched"
        self.entered.set()
        if self.gate is not None:
            _demand(self.gate.wait(30), "the gate was never opened")
        self._check_writes(batch)
        for source, destination in batch.copies:
            self.slots[destination] = self.slots[source].copy()
        self.copies += len(batch.copies)
        if self.fail is not None:
            try:
                self.fail(batch)
            except Exception:
                for step in batch.steps:  # what a crash leaves behind must never be read
                    self._scribble(step)
                raise
        self.batches.append([len(step.tokens) for step in batch.steps])
        for step in batch.steps:
            self._write(step)
        return [self._result(step) for step in batch.steps]

    def close(self) -> None:
        self.closed = True

    def context_of(self, step: SequenceStep) -> list[int]:
        """The sequence's tokens as its block table spells them."""
        length = step.context + len(step.tokens)
        size = self.block_size
        return [self.slots[step.block_table[i // size]][i % size] for i in range(length)]

    def _positions(self, step: SequenceStep) -> range:
        return range(step.context, step.context + len(step.tokens))

    def _check_writes(self, batch: Batch) -> None:
        """No block is written by one sequence and touched by another in the same batch."""
        size = self.block_size
        writers: dict[int, int] = {}
        for number, step in enumerate(batch.steps):
            _demand(len(step.tokens) > 0, "a step without tokens")
            needed = -(-(step.context + len(step.tokens)) // size)
            _demand(len(step.block_table) >= needed, "the block table is too short")
            _demand(len(set(step.block_table)) == len(step.block_table), "a block occurs twice")
            for position in self._positions(step):
                block = step.block_table[position // size]
                _demand(writers.setdefault(block, number) == number, "two write to one block")
        for number, step in enumerate(batch.steps):
            for block in step.block_table[: -(-step.context // size)]:
                _demand(
                    writers.get(block, number) == number, "a block is written beside its reader"
                )
        destinations = [destination for _, destination in batch.copies]
        _demand(len(set(destinations)) == len(destinations), "two copies into one block")
        _demand(not {source for source, _ in batch.copies} & set(destinations), "copies chain")
        _demand(
            not {source for source, _ in batch.copies} & set(writers), "a copy's source is written"
        )

    def _write(self, step: SequenceStep) -> None:
        for token, position in zip(step.tokens, self._positions(step), strict=True):
            _demand(0 <= token < self.vocab_size, f"token {token}")
            block = self.slots[step.block_table[position // self.block_size]]
            block[position % self.block_size] = token

    def _scribble(self, step: SequenceStep) -> None:
        for position in self._positions(step):
            block = self.slots[step.block_table[position // self.block_size]]
            block[position % self.block_size] = UNWRITTEN

    def _result(self, step: SequenceStep) -> StepResult:
        context = self.context_of(step)
        _demand(UNWRITTEN not in context, f"KV that was never computed is read: {context}")
        _demand(REJECTED not in context, f"KV of tokens that don't count is read: {context}")
        _demand(
            context[step.context :] == list(step.tokens),
            "two positions share a slot",
        )
        scores = [
            self._logprob(context[: step.context + i + 1], target, step.score_top)
            for i, target in enumerate(step.score_targets)
        ]
        chosen = self._choose(step, context)
        if chosen is None:
            return StepResult(error="no token is allowed")
        return StepResult(chosen, scores, self._pool(step, context))

    def _choose(self, step: SequenceStep, context: list[int]) -> list[SampledToken] | None:
        """The tokens that count of those to be drawn; None where one can't be."""
        _demand(0 <= step.proposed < len(step.tokens), "all tokens are proposed")
        _demand(not step.proposed or len(step.samples) == step.proposed + 1, "rows and proposals")
        certain = len(context) - step.proposed
        chosen: list[SampledToken] = []
        for row in step.samples:
            history = context[: certain + min(len(chosen), step.proposed)]
            sampled = self._sample(history, row)
            if sampled is None and (not step.proposed or not chosen):
                return None
            if sampled is None:
                break
            chosen.append(sampled)
            if len(chosen) <= step.proposed and sampled.token != context[len(history)]:
                break
        if step.proposed:
            counting = certain + len(chosen) - 1
            self.accepted += counting - certain
            self.rejected += len(context) - counting
            for position in range(counting, len(context)):
                block = self.slots[step.block_table[position // self.block_size]]
                block[position % self.block_size] = REJECTED
        return chosen

    def _pool(self, step: SequenceStep, context: list[int]) -> NDArray[np.float64] | None:
        rows = step.pooled_rows
        if rows is None:
            return None
        _demand(rows.count > 0 and rows.first >= 0, "pooled rows")
        _demand(rows.first + rows.count <= len(step.tokens), "pooled rows")
        total = np.zeros(1) if rows.carry is None else rows.carry.copy()
        for i in range(step.context + rows.first, step.context + rows.first + rows.count):
            total += state(context[: i + 1])
        return total

    def _sample(self, context: list[int], row: SamplingRow) -> SampledToken | None:
        if row.prompt_tokens or row.output_tokens:
            _demand(
                [*row.prompt_tokens, *row.output_tokens] == context,
                "the penalties' history is not the sequence's",
            )
            _demand(len(row.output_tokens) == row.step, "a wrong step number")
        token = next_token(context, row.seed, row.stream, self.vocab_size)
        for _ in range(self.vocab_size):
            allowed = row.allowed_tokens is None or allows(row.allowed_tokens, token)
            if allowed and token not in row.banned_tokens:
                break
            token = (token + 1) % self.vocab_size
        else:
            return None
        logprob = None
        if row.params.logprobs is not None:
            logprob = self._logprob(context, token, row.params.logprobs)
        return SampledToken(token, logprob)

    def _logprob(self, history: Sequence[int], target: int, top: int) -> TokenLogprob:
        return TokenLogprob(
            target, score(history, target), 1, [(t, score(history, t)) for t in range(top)]
        )


def expected_output(
    prompt: Sequence[int],
    *,
    seed: int,
    stream: int = 0,
    count: int,
    vocab_size: int,
    stop: frozenset[int] = frozenset(),
) -> list[int]:
    """What the fake model answers to `prompt`, computed without an engine."""
    history = list(prompt)
    output: list[int] = []
    while len(output) < count:
        token = next_token(history, seed, stream, vocab_size)
        history.append(token)
        output.append(token)
        if token in stop:
            break
    return output


def _as_launched(batch: Batch) -> Batch:
    """A batch as it is now: the lists that it refers to may change from here on."""
    steps = [
        replace(
            step,
            tokens=list(step.tokens),
            block_table=list(step.block_table),
            score_targets=list(step.score_targets),
            samples=[
                replace(
                    row,
                    prompt_tokens=list(row.prompt_tokens),
                    output_tokens=list(row.output_tokens),
                    banned_tokens=list(row.banned_tokens),
                )
                for row in step.samples
            ],
        )
        for step in batch.steps
    ]
    return Batch(steps, list(batch.copies))
