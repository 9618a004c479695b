"""An iteration as the native library takes it."""

from __future__ import annotations

import numpy as np

from caudal import _native
from caudal.backends.executor import Batch, ExecutorInfo, SamplingRow

_NOTHING = np.empty(0)

LEAST_TOP_P = 1e-9
"""Stands for 0: the likeliest token reaches it alone."""


def native_batch(batch: Batch, info: ExecutorInfo) -> _native.Batch:
    """An iteration's arrays.

    Args:
        batch: The iteration.
        info: Of what runs it.
    """
    native = _native.Batch()
    for source, destination in batch.copies:
        native.add_copy(source, destination)
    for step in batch.steps:
        second = -1 if step.second_segment is None else step.second_segment
        native.add_sequence(step.tokens, step.context, step.block_table, second)
        if step.state is not None:
            source = -1 if step.state.source is None else step.state.source
            native.set_states(source, step.state.destination)
        if step.adapter is not None:
            native.set_adapter(step.adapter)
        if step.pooled_rows is not None:
            carry = _NOTHING if step.pooled_rows.carry is None else step.pooled_rows.carry
            native.add_pooling(step.pooled_rows.first, step.pooled_rows.count, carry)
        if step.states:
            native.add_states(step.states)
        if step.given is not None:
            native.add_given(step.given)
        last = len(step.tokens) - 1
        index = last - step.proposed
        for row in step.samples:
            _add_sample(native, index, row)
            index = min(index + 1, last)
        for index, target in enumerate(step.score_targets):
            native.add_score(index, target, step.score_top)
    if info.windows:
        native.set_window_copies(batch.window_copies)
        for number, step in enumerate(batch.steps):
            native.set_window_tables(number, step.window_tables)
    return native


def _add_sample(native: _native.Batch, index: int, row: SamplingRow) -> None:
    params = row.params
    native.add_sample(
        index,
        params.temperature,
        params.top_k,
        max(params.top_p, LEAST_TOP_P),
        params.min_p,
        params.typical_p,
        row.seed,
        row.stream,
        row.step,
        -1 if params.logprobs is None else params.logprobs,
        row.allowed_tokens or b"",
        row.banned_tokens,
    )
    penalised = (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
    if penalised or params.logit_bias:
        native.adjust_sample(
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            row.prompt_tokens,
            row.output_tokens,
            list(params.logit_bias.items()),
        )
