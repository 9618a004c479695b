"""The contract between the engine and whatever runs a model: one batch in, next tokens out.

The engine decides *what* runs (which tokens of which sequences, in which blocks); an executor runs
it and decides nothing. Everything here is plain Python data, so that the engine can be tested
with a fake executor in milliseconds, and a backend may pack it as suits its hardware. Nobody
changes what others have made; all the same, what is made for every token isn't frozen: that would
take twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from caudal.backends.facts import ExecutorFacts
from caudal.formats.lora.adapter import Adapter
from caudal.sampling_params import SamplingParams

Bytes = NDArray[np.uint8]
"""Memory, shape (bytes,), in one piece."""


@dataclass(slots=True)
class SamplingRow:
    """How to choose one token from a row of logits.

    Sampling keeps no state between iterations: the random number is a function of
    (`seed`, `stream`, `step`) alone, and penalties are computed from the history given here. That
    is what makes a request's tokens independent of batching, preemption and thread count.

    Attributes:
        params: The request's parameters.
        seed: 64-bit key of the counter-based generator.
        stream: Which of the request's `n` sequences this is.
        step: Tokens this sequence has generated so far.
        prompt_tokens: The prompt, read only by the repetition penalty.
        output_tokens: Tokens generated so far, read only by penalties.
        banned_tokens: Ids that must not be chosen (end-of-sequence while `min_tokens` lasts).
        allowed_tokens: A grammar's bit mask, bit i of byte i // 8 for token i; None allows all.
    """

    params: SamplingParams
    seed: int
    stream: int
    step: int
    prompt_tokens: Sequence[int] = ()
    output_tokens: Sequence[int] = ()
    banned_tokens: Sequence[int] = ()
    allowed_tokens: bytes | None = None


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Which tokens' states of a step to sum up, for an embedding.

    Attributes:
        first: The first token, as an index into the step's `tokens`.
        count: How many tokens.
        carry: The sum of the states before them, to be added to, shape (width,); None for zeros.
            Adding goes token by token, so that the sum is the same however a prompt is cut.
    """

    first: int
    count: int
    carry: NDArray[np.float64] | None = None


@dataclass(slots=True)
class StateSlots:
    """Where a step finds what recurrent layers remember of its sequence, and where it leaves it.

    A slot holds the states of all recurrent layers. What a step leaves is that after the last of
    its tokens, proposed ones included. No step's destination is a slot of any other step in the
    batch; several may have the same source.

    Attributes:
        source: The slot with the states after `context` tokens; None at the start of a sequence.
        destination: The slot for those after the step; it may be the source.
    """

    source: int | None
    destination: int


@dataclass(slots=True)
class SequenceStep:
    """One sequence's part of an iteration: compute the KV of `tokens`, which follow `context`.

    The last of the tokens may be *proposed*: guesses at what will be drawn, computed at once
    instead of one after the other. What is drawn doesn't depend on them: a guess counts, with its
    KV, where just that token is drawn in its place, and where another is, those after it don't.

    Attributes:
        tokens: The token ids to run, at positions `context`, `context + 1`, …; never empty.
        context: Tokens of this sequence whose KV is already in the pool.
        block_table: Physical block ids that cover `context + len(tokens)` positions at least.
        window_tables: The same for each of the executor's window pools, in their order. Blocks
            that none of the tokens sees may be gone: -1 stands in their places.
        state: Where recurrent states are; None where the model has none.
        samples: Tokens to draw. From the last position's logits: none for a chunk that isn't a
            prompt's last, one as a rule, `n` where sequences fork from a finished prompt. Before
            that one, one for each token proposed: what is drawn in its place, from the logits of
            the token before it.
        score_targets: For prompt log-probabilities: `score_targets[i]` is the token that follows
            `tokens[i]`; empty, or as many as wanted from the start of `tokens`.
        score_top: Likeliest alternatives to return with each scored target.
        pooled_rows: The tokens whose final hidden states are summed up, or None.
        second_segment: Position at which the second text of a pair begins, for an encoder that
            tells them apart; None: there is only one.
        proposed: How many of `tokens`, the last ones, are proposed; fewer than all.
        adapter: The number of the adapter (`LoadedAdapter.index`) that the tokens are computed
            with, as all of `context` was: keys, values and states of one adapter are no other's,
            nor the bare model's. None: without any.
        states: The final hidden states (what the head's logits are computed of) of so many of the
            tokens, the last ones, are to be returned.
        given: A row of numbers for each token, where the program takes that, shape (tokens, width).
    """

    tokens: Sequence[int]
    context: int
    block_table: Sequence[int]
    samples: Sequence[SamplingRow] = ()
    score_targets: Sequence[int] = ()
    score_top: int = 0
    pooled_rows: PooledRows | None = None
    second_segment: int | None = None
    proposed: int = 0
    window_tables: Sequence[Sequence[int]] = ()
    state: StateSlots | None = None
    adapter: int | None = None
    states: int = 0
    given: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One iteration's work.

    Attributes:
        steps: Sequences that run, in any order; no sequence twice.
        copies: (source, destination) physical blocks to copy whole before anything runs, in any
            order: no block is both a source and a destination, and none is copied into twice.
        window_copies: The same for each window pool; empty where there is nothing to copy.
    """

    steps: Sequence[SequenceStep]
    copies: Sequence[tuple[int, int]] = ()
    window_copies: Sequence[Sequence[tuple[int, int]]] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this iteration."""
        return sum(len(step.tokens) for step in self.steps)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log-probability under the model's raw distribution.

    Attributes:
        token: The token id.
        logprob: Natural logarithm of its probability.
        rank: 1 for the likeliest token, 2 for the next, …
        top: The likeliest tokens and their log-probabilities, likeliest first.
    """

    token: int
    logprob: float
    rank: int
    top: Sequence[tuple[int, float]] = ()


@dataclass(slots=True)
class SampledToken:
    """A chosen token; `logprob` only where the request asked for log-probabilities."""

    token: int
    logprob: TokenLogprob | None = None


@dataclass(slots=True)
class StepResult:
    """What came out of one `SequenceStep`.

    Attributes:
        samples: Chosen tokens, one for each that was to be drawn; where tokens were proposed, up
            to the first that isn't the one proposed in its place: those that count.
        scores: Log-probabilities of the score targets, of all of them.
        pooled: The sum of the pooled states, shape (width,); None where none was asked for.
        states: The states asked for, proposed tokens' too, shape (states, width); likewise.
        error: Set, with all else empty, where this sequence alone failed (its logits are NaN, or a
            grammar allows no token); the rest of the batch is unharmed. What fails behind a
            proposed token doesn't count: it will be drawn again, with nothing before it.
    """

    samples: Sequence[SampledToken] = ()
    scores: Sequence[TokenLogprob] = ()
    pooled: NDArray[np.float64] | None = None
    error: str | None = None
    states: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class WindowPool:
    """Blocks for the layers that see no further than a window.

    Attributes:
        num_blocks: Physical blocks in the pool.
        window: Tokens that a query sees, itself among them.
    """

    num_blocks: int
    window: int


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter that an executor has.

    Attributes:
        index: Its number, which steps name it by; once it is unloaded another may get it.
        rank: The largest rank of its changes.
        bytes: Memory that it takes.
    """

    index: int
    rank: int
    bytes: int


def blocks_of_window(window: int, block_size: int) -> int:
    """Most blocks that the tokens of a window are in, one of them being computed."""
    return -(-(window - 1) // block_size) + 1


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What an executor is and holds.

    Attributes:
        num_blocks: Physical KV blocks in the pool for layers that see all tokens.
        block_size: Tokens a block holds, in every pool.
        vocab_size: Length of a row of logits.
        facts: What is worth showing of it.
        windows: The pools for layers with windows, shortest first.
        num_slots: Slots for the states of recurrent layers; 0 where the model has none.
        block_bytes: Bytes of a block, by *kind*: of the main pool, of each pool for a window, and
            at last of a slot, where there are any.
    """

    num_blocks: int
    block_size: int
    vocab_size: int
    facts: ExecutorFacts
    windows: Sequence[WindowPool] = ()
    num_slots: int = 0
    block_bytes: Sequence[int] = ()


class Executor(Protocol):
    """Runs batches, one after the other. Called from one thread at a time."""

    @property
    def info(self) -> ExecutorInfo:
        """Pool geometry and facts, constant for the executor's life."""

    def launch(self, batch: Batch) -> None:
        """Begin an iteration. `collect` must have been called for the one before.

        Args:
            batch: The work. KV at positions below each step's `context` must have been computed.
                Its lists may be the engine's own: valid until this returns, and not to be changed.

        Raises:
            Exception: Nothing was begun, and there is nothing to collect.
        """

    def collect(self) -> Sequence[StepResult]:
        """Wait for the iteration that was launched.

        Returns:
            One result per step, in the batch's order.

        Raises:
            Exception: It has failed; what it was to compute is undefined.
        """

    def execute(self, batch: Batch) -> Sequence[StepResult]:
        """Launch an iteration and collect it, for those who have nothing to do meanwhile."""
        self.launch(batch)
        return self.collect()

    def rest(self) -> None:
        """Leave the processors to others until the next iteration, which may begin a bit later."""
        return

    def load_adapter(self, adapter: Adapter) -> LoadedAdapter:
        """Take an adapter, which steps may name from now on. Called between iterations.

        Adapters of one model are mixed within a batch as the steps name them. What a step computes
        depends on its own alone, to the last bit, and costs nothing where it has none.

        Raises:
            ModelLoadError: It changes what the model doesn't have or adapters can't change, or
                memory doesn't suffice. Nothing has changed then.
        """

    def unload_adapter(self, index: int) -> None:
        """Give an adapter's memory back. Called between iterations, when no step names it any more.

        Raises:
            KeyError: There is no adapter of this number.
        """
        ...

    def fingerprint(self) -> bytes:
        """What the bytes of blocks are made of: the model, to the last weight, and how it computes.

        With the same fingerprint the same tokens have the same bytes, in another process too, but
        for adapters, which aren't part of it. It may take a moment to make.
        """

    def read_blocks(self, kind: int, blocks: Sequence[int], out: Bytes) -> None:
        """Copy blocks, one behind the other. Called between iterations.

        Args:
            kind: Of which kind; see `ExecutorInfo.block_bytes`.
            blocks: Their ids.
            out: Where to; as many bytes as they have.

        Raises:
            IndexError, ValueError: There is no such kind or block, or the bytes aren't so many.
        """
        ...

    def write_blocks(self, kind: int, blocks: Sequence[int], data: Bytes | bytes) -> None:
        """Let blocks be what was read of others. Called between iterations; see `read_blocks`."""
        ...

    def close(self) -> None:
        """Release threads and memory. Safe to call twice."""
