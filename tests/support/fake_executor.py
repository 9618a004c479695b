"""An executor without a model that notices every mistake in paging.

Its "KV" is the token itself: running a token writes it into its block's slot, and before anything
is sampled the whole context is read back through the block table and must spell the sequence's
true history. So must a window's part of it, read through the window's table, where nothing else is
there; and a recurrent "state" is the whole history itself, which a step must find to be that of its
own context. The next token is a hash of that history and the sampling row, so that a request's
tokens are the same however it was batched, chunked, cached, preempted or forked, or the test fails.
What was written for proposed tokens that weren't drawn is struck out: nobody may read it.
What was computed with an adapter is marked so, and may be read with that one alone; the tokens
drawn with it are others.
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
    Bytes,
    Executor,
    ExecutorInfo,
    LoadedAdapter,
    SampledToken,
    SamplingRow,
    SequenceStep,
    StateSlots,
    StepResult,
    TokenLogprob,
    WindowPool,
)
from caudal.formats.lora.adapter import Adapter
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


def with_adapter(seed: int, source: str) -> int:
    """The seed with which the bare model draws what an adapter's sequence does with this one."""
    return seed ^ mark_of(source)


def mark_of(source: str) -> int:
    """What scores and states of an adapter's sequence have before its history."""
    digest = hashlib.blake2b(source.encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


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


def state_row(history: Sequence[int]) -> list[float]:
    """The same in as many numbers as tell histories apart."""
    return [score(history, -number) for number in (1, 2, 3)]


def pooled_states(prompt: Sequence[int], kind: PoolingKind, mark: Sequence[int] = ()) -> float:
    """The sum of the fake states of a prompt that a pooling request asks for, with its mark."""
    states = [state([*mark, *prompt[: i + 1]]) for i in range(len(prompt))]
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
        windows: Pools for layers with windows.
        num_slots: Slots for recurrent states.
        slides: Whether blocks that no query sees must be gone, as the engine has it between two
            iterations.
        adapters: Those that are loaded, by number.
        fail: Called with each batch; raises to let it fail, with half of its writes done.
        gate: While cleared, holds the executor inside `collect`; `entered` says that it is there.
        batches: Number of tokens of each step of each batch that ran.
        copies: Blocks copied so far.
        accepted: Proposed tokens that were drawn in their places, so far.
        rejected: Proposed tokens that were not.
        closed: Whether `close` was called.
        model: What tells it from others, whose blocks it can't take.
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
    windows: Sequence[WindowPool] = ()
    num_slots: int = 0
    slides: bool = True
    adapters: dict[int, Adapter] = field(default_factory=dict)
    model: str = "fake"

    def __post_init__(self) -> None:
        counts = [self.num_blocks, *(pool.num_blocks for pool in self.windows)]
        self.pools = [[[UNWRITTEN] * self.block_size for _ in range(count)] for count in counts]
        # With which adapter each token was computed.
        self.owners: list[list[list[Adapter | None]]] = [
            [[None] * self.block_size for _ in range(count)] for count in counts
        ]
        self.states: list[list[int] | None] = [None] * self.num_slots
        self.state_owners: list[Adapter | None] = [None] * self.num_slots
        self._had_adapters = False
        self.entered = threading.Event()
        self._launched: Batch | None = None

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(
            self.num_blocks,
            self.block_size,
            self.vocab_size,
            EXECUTOR_FACTS,
            self.windows,
            self.num_slots,
            self._block_bytes(),
        )

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
        tables = [_tables(step) for step in batch.steps]
        copies = [batch.copies, *(batch.window_copies or [()] * len(self.windows))]
        _demand(len(copies) == len(self.pools), "copies of each pool")
        for kind, pool in enumerate(self.pools):
            for step, own in zip(batch.steps, tables, strict=True):
                _demand(len(own) == len(self.pools), "a table for each pool")
                self._check_table(step, own[kind], kind)
            self._check_writes(batch, [own[kind] for own in tables], copies[kind])
            for source, destination in copies[kind]:
                pool[destination] = pool[source].copy()
                self.owners[kind][destination] = self.owners[kind][source].copy()
        self._check_states(batch)
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

    def load_adapter(self, adapter: Adapter) -> LoadedAdapter:
        _demand(self._launched is None, "an adapter is loaded while an iteration runs")
        index = next(i for i in range(len(self.adapters) + 1) if i not in self.adapters)
        self.adapters[index] = adapter
        self._had_adapters = True
        return LoadedAdapter(index, adapter.rank, adapter.nbytes)

    def unload_adapter(self, index: int) -> None:
        _demand(self._launched is None, "an adapter is unloaded while an iteration runs")
        del self.adapters[index]

    def fingerprint(self) -> bytes:
        return f"{self.model} {self.block_size} {self.vocab_size} {self.windows}".encode()

    def read_blocks(self, kind: int, blocks: Sequence[int], out: Bytes) -> None:
        _demand(self._launched is None, "blocks are read while an iteration runs")
        data = b"".join(self._bytes_of(kind, block) for block in blocks)
        if len(data) != len(out):
            raise ValueError("blocks have another number of bytes")
        out[:] = np.frombuffer(data, np.uint8)

    def write_blocks(self, kind: int, blocks: Sequence[int], data: Bytes | bytes) -> None:
        _demand(self._launched is None, "blocks are written while an iteration runs")
        size = self._block_bytes()[kind]
        if len(data) != size * len(blocks):
            raise ValueError("blocks have another number of bytes")
        for place, block in enumerate(blocks):
            numbers = np.frombuffer(data, np.int64, size // 8, place * size).tolist()
            if kind == len(self.pools):
                owner, count, *tokens = numbers
                self.states[block] = tokens[:count] if count >= 0 else None
                self.state_owners[block] = self._adapter_numbered(owner)
            else:
                self.pools[kind][block] = numbers[: self.block_size]
                owners = numbers[self.block_size :]
                self.owners[kind][block] = list(map(self._adapter_numbered, owners))

    def _adapter_numbered(self, number: int) -> Adapter | None:
        """The adapter that some bytes name, as it is loaded now."""
        named = _ADAPTERS[number]
        source = None if named is None else named.source
        same = (each for each in self.adapters.values() if each.source == source)
        return next(same, named)

    def _block_bytes(self) -> tuple[int, ...]:
        pools = [16 * self.block_size] * len(self.pools)
        slot = 8 * (2 + self.num_blocks * self.block_size)
        return (*pools, slot) if self.num_slots else tuple(pools)

    def _bytes_of(self, kind: int, block: int) -> bytes:
        """A block's tokens and whose they are; or a slot's adapter, and how many tokens it saw."""
        if kind == len(self.pools):
            seen = self.states[block]
            numbers = [_number_of(self.state_owners[block]), *([-1] if seen is None else [])]
            numbers += [] if seen is None else [len(seen), *seen]
            numbers += [0] * (self._block_bytes()[kind] // 8 - len(numbers))
        else:
            owners = self.owners[kind][block]
            numbers = [*self.pools[kind][block], *map(_number_of, owners)]
        return np.array(numbers, np.int64).tobytes()

    def close(self) -> None:
        self.closed = True

    def context_of(self, step: SequenceStep) -> list[int]:
        """The sequence's tokens as its block table spells them."""
        return self.read(0, step.block_table, 0, step.context + len(step.tokens))

    def adapter_of(self, step: SequenceStep) -> Adapter | None:
        """What a step is computed with."""
        _demand(step.adapter is None or step.adapter in self.adapters, "an adapter isn't loaded")
        return None if step.adapter is None else self.adapters[step.adapter]

    def read(self, kind: int, table: Sequence[int], first: int, end: int) -> list[int]:
        """The tokens at some positions, as a block table of a pool spells them."""
        pool, size = self.pools[kind], self.block_size
        return [pool[table[i // size]][i % size] for i in range(first, end)]

    def seen(self, kind: int, context: int) -> int:
        """The first position that a query at `context` sees in a pool."""
        return max(0, context - self.windows[kind - 1].window + 1) if kind else 0

    def _positions(self, step: SequenceStep) -> range:
        return range(step.context, step.context + len(step.tokens))

    def _check_table(self, step: SequenceStep, table: Sequence[int], kind: int) -> None:
        """All blocks that are seen are there, once; and none that isn't."""
        size = self.block_size
        _demand(len(step.tokens) > 0, "a step without tokens")
        needed = -(-(step.context + len(step.tokens)) // size)
        _demand(len(table) >= needed, "the block table is too short")
        first = self.seen(kind, step.context) // size
        gone = all(block < 0 for block in table[:first])
        _demand(gone or not self.slides, "a block outside its window is kept")
        _demand(all(block >= 0 for block in table[first:]), "a block that is seen is gone")
        _demand(len(set(table[first:])) == len(table) - first, "a block occurs twice")

    def _check_writes(
        self,
        batch: Batch,
        tables: Sequence[Sequence[int]],
        copies: Sequence[tuple[int, int]],
    ) -> None:
        """No block is written by one sequence and touched by another in the same batch."""
        size = self.block_size
        writers: dict[int, int] = {}
        for number, (step, table) in enumerate(zip(batch.steps, tables, strict=True)):
            for position in self._positions(step):
                block = table[position // size]
                _demand(writers.setdefault(block, number) == number, "two write to one block")
        for number, (step, table) in enumerate(zip(batch.steps, tables, strict=True)):
            for block in table[: -(-step.context // size)]:
                _demand(
                    writers.get(block, number) == number, "a block is written beside its reader"
                )
        destinations = [destination for _, destination in copies]
        _demand(len(set(destinations)) == len(destinations), "two copies into one block")
        _demand(not {source for source, _ in copies} & set(destinations), "copies chain")
        _demand(not {source for source, _ in copies} & set(writers), "a copy's source is written")

    def _check_states(self, batch: Batch) -> None:
        """Every step has a slot of its own to write, and finds the state of its very context."""
        slots = [step.state for step in batch.steps if step.state is not None]
        _demand(len(slots) == (len(batch.steps) if self.num_slots else 0), "slots for states")
        destinations = [state.destination for state in slots]
        _demand(len(set(destinations)) == len(destinations), "two write to one slot")
        for state in slots:
            others = set(destinations) - {state.destination}
            _demand(state.source not in others, "a slot is written beside its reader")
        for step in batch.steps:
            if step.state is not None:
                context = self.read(0, step.block_table, 0, step.context)
                _demand(self.state_in(step.state.source) == context, "a state of something else")
                owned = step.state.source is None or (
                    self.state_owners[step.state.source] is self.adapter_of(step)
                )
                _demand(owned, "a state of another adapter")

    def state_in(self, slot: int | None) -> list[int] | None:
        """The tokens that the state in a slot has seen; none at the start."""
        return [] if slot is None else self.states[slot]

    def _write(self, step: SequenceStep) -> None:
        for token in step.tokens:
            _demand(0 <= token < self.vocab_size, f"token {token}")
        self._put(step, self._positions(step), step.tokens)

    def _scribble(self, step: SequenceStep) -> None:
        positions = self._positions(step)
        self._put(step, positions, [UNWRITTEN] * len(positions))
        if step.state is not None:
            self.states[step.state.destination] = None

    def _put(self, step: SequenceStep, positions: range, tokens: Sequence[int]) -> None:
        """Write tokens into the blocks of all pools."""
        size, adapter = self.block_size, self.adapter_of(step)
        for pool, owners, table in zip(self.pools, self.owners, _tables(step), strict=True):
            for token, position in zip(tokens, positions, strict=True):
                pool[table[position // size]][position % size] = token
                owners[table[position // size]][position % size] = adapter

    def _result(self, step: SequenceStep) -> StepResult:
        context = self.context_of(step)
        _demand(UNWRITTEN not in context, f"KV that was never computed is read: {context}")
        _demand(REJECTED not in context, f"KV of tokens that don't count is read: {context}")
        _demand(
            context[step.context :] == list(step.tokens),
            "two positions share a place",
        )
        self._check_owners(step, len(context))
        for kind, table in enumerate(step.window_tables, 1):
            first = self.seen(kind, step.context)
            window = self.read(kind, table, first, len(context))
            _demand(window == context[first:], "a window's KV is not the sequence's")
        if step.state is not None:
            self.states[step.state.destination] = context
            self.state_owners[step.state.destination] = self.adapter_of(step)
        adapter = self.adapter_of(step)
        mark = [] if adapter is None else [mark_of(adapter.source)]
        scores = [
            self._logprob(mark + context[: step.context + i + 1], target, step.score_top)
            for i, target in enumerate(step.score_targets)
        ]
        chosen = self._choose(step, context)
        if chosen is None:
            return StepResult(error="no token is allowed")
        result = StepResult(chosen, scores, self._pool(step, mark, context))
        if step.states:
            ends = range(len(context) - step.states + 1, len(context) + 1)
            result.states = np.array([state_row(mark + context[:end]) for end in ends], np.float32)
        return result

    def _check_owners(self, step: SequenceStep, end: int) -> None:
        """All that a step sees was computed with its adapter."""
        if not self._had_adapters:
            return
        size, adapter = self.block_size, self.adapter_of(step)
        for kind, (owners, table) in enumerate(zip(self.owners, _tables(step), strict=True)):
            for i in range(self.seen(kind, step.context), end):
                owner = owners[table[i // size]][i % size]
                _demand(owner is adapter, "what was computed with another adapter is read")

    def _choose(self, step: SequenceStep, context: list[int]) -> list[SampledToken] | None:
        """The tokens that count of those to be drawn; None where one can't be."""
        _demand(0 <= step.proposed < len(step.tokens), "all tokens are proposed")
        _demand(not step.proposed or len(step.samples) == step.proposed + 1, "rows and proposals")
        certain = len(context) - step.proposed
        adapter = self.adapter_of(step)
        chosen: list[SampledToken] = []
        for row in step.samples:
            history = context[: certain + min(len(chosen), step.proposed)]
            if adapter is not None:
                row = replace(row, seed=with_adapter(row.seed, adapter.source))
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
            rejected = range(counting, len(context))
            self._put(step, rejected, [REJECTED] * len(rejected))
        return chosen

    def _pool(
        self, step: SequenceStep, mark: list[int], context: list[int]
    ) -> NDArray[np.float64] | None:
        rows = step.pooled_rows
        if rows is None:
            return None
        _demand(rows.count > 0 and rows.first >= 0, "pooled rows")
        _demand(rows.first + rows.count <= len(step.tokens), "pooled rows")
        total = np.zeros(1) if rows.carry is None else rows.carry.copy()
        for i in range(step.context + rows.first, step.context + rows.first + rows.count):
            total += state(mark + context[: i + 1])
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


_ADAPTERS: list[Adapter | None] = [None]
"""All whose number some bytes have."""


def _number_of(adapter: Adapter | None) -> int:
    if adapter not in _ADAPTERS:
        _ADAPTERS.append(adapter)
    return _ADAPTERS.index(adapter)


def _as_launched(batch: Batch) -> Batch:
    """A batch as it is now: the lists that it refers to may change from here on."""
    steps = [
        replace(
            step,
            tokens=list(step.tokens),
            block_table=list(step.block_table),
            window_tables=[list(table) for table in step.window_tables],
            state=step.state and StateSlots(step.state.source, step.state.destination),
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
    return Batch(steps, list(batch.copies), [list(copies) for copies in batch.window_copies])


def _tables(step: SequenceStep) -> list[Sequence[int]]:
    """The block tables of all pools, the main one's first."""
    return [step.block_table, *step.window_tables]
