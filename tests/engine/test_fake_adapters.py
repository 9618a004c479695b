"""The fake executor tells adapters apart, so that a cache shared wrongly shows."""

from __future__ import annotations

import pytest

from caudal.backends.executor import Batch, SamplingRow, SequenceStep
from caudal.sampling_params import SamplingParams
from support.fake_executor import FakeExecutor, PagingFault, expected_output, with_adapter
from support.tiny_adapter import tiny_adapter

ROW = SamplingRow(SamplingParams(), seed=3, stream=0, step=0)


def draw(executor: FakeExecutor, tokens: list[int], context: int, adapter: int | None) -> int:
    step = SequenceStep(tokens, context, [0, 1], [ROW], adapter=adapter)
    [result] = executor.execute(Batch([step]))
    return result.samples[0].token


def test_tokens_depend_on_the_adapter_and_its_kv_is_nobody_elses() -> None:
    executor = FakeExecutor()
    first, second = (executor.load_adapter(tiny_adapter(name)) for name in ("one", "two"))
    for adapter, seed in (
        (None, 3),
        (first.index, with_adapter(3, "one")),
        (second.index, with_adapter(3, "two")),
    ):
        drawn = draw(executor, [1, 2, 3], 0, adapter)
        assert [drawn] == expected_output([1, 2, 3], seed=seed, count=1, vocab_size=50)
    for other in (None, first.index):
        with pytest.raises(PagingFault, match="another adapter"):
            draw(executor, [4], 3, other)
    executor.unload_adapter(second.index)
    again = executor.load_adapter(tiny_adapter("three"))
    assert again.index == second.index
    with pytest.raises(PagingFault, match="another adapter"):
        draw(executor, [4], 3, again.index)
