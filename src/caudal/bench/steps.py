"""Steps of sequences that no engine keeps account of: for measuring an executor by itself."""

from __future__ import annotations

from collections.abc import Sequence

from caudal.backends.executor import (
    ExecutorInfo,
    SamplingRow,
    SequenceStep,
    StateSlots,
    blocks_of_window,
)
from caudal.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)


def greedy_row() -> SamplingRow:
    """The likeliest token, without log-probabilities."""
    return SamplingRow(params=_GREEDY, seed=0, stream=0, step=0)


def lone_step(
    info: ExecutorInfo,
    tokens: Sequence[int],
    context: int,
    *,
    blocks: Sequence[int],
    number: int = 0,
) -> SequenceStep:
    """A step behind which a token is drawn.

    Args:
        info: The executor's.
        tokens: Tokens to run.
        context: Tokens before them.
        blocks: Blocks of the main pool for all of them.
        number: Which of the sequences that run at once this is; it says which blocks for windows
            and which slot it takes.
    """
    step = SequenceStep(tokens, context, blocks, [greedy_row()])
    size = info.block_size
    needed = -(-(context + len(tokens)) // size)
    tables = []
    for pool in info.windows:
        first = max(0, context - pool.window + 1) // size
        begin = number * blocks_of_window(pool.window, size)
        seen = [(begin + place) % pool.num_blocks for place in range(first, needed)]
        tables.append([-1] * first + seen)
    step.window_tables = tables
    if info.num_slots:
        slot = number % info.num_slots
        step.state = StateSlots(slot if context else None, slot)
    return step
