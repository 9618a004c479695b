"""Pooling requests (embeddings) in the engine: right sums, and nobody waits for the other kind."""

from __future__ import annotations

import random

import pytest

from caudal.engine.config import EngineConfig
from caudal.engine.request import FinishReason
from caudal.errors import ParameterError
from caudal.models.pooling import PoolingKind
from support.engine_harness import Harness

KINDS: tuple[PoolingKind, ...] = ("mean", "cls", "last")


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1, 50), k=length)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [9, 13, 64])
def test_sums_are_the_same_however_the_prompt_is_cut(kind: PoolingKind, budget: int) -> None:
    harness = Harness(max_num_seqs=8, max_num_batched_tokens=budget)
    for i in range(6):
        harness.submit(prompt_of(30 + i, i), pooling=kind)
    harness.run()
    harness.check_outputs()


@pytest.mark.parametrize("kind", KINDS)
def test_cached_prefixes_are_used_only_where_their_states_are_not_needed(kind: PoolingKind) -> None:
    harness = Harness()
    prompt = prompt_of(22)
    harness.submit(prompt, max_tokens=1)
    harness.run()
    request_id = harness.submit(prompt, pooling=kind)
    harness.run()
    harness.check_outputs()
    assert harness.cached(request_id) == (21 if kind == "last" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_preemption_changes_nothing(kind: PoolingKind) -> None:
    harness = Harness(num_blocks=14, max_model_len=56, max_num_seqs=4, max_num_batched_tokens=7)
    for i in range(3):
        harness.submit(prompt_of(8, i), max_tokens=40, ignore_eos=True)
    ids = []
    for i in range(4):
        harness.step()
        ids.append(harness.submit(prompt_of(26, 10 + i), pooling=kind))
    harness.run()
    assert harness.engine.stats().preemptions > 0
    harness.check_outputs()


def test_an_embedding_does_not_wait_behind_generation() -> None:
    """All places taken, a long prompt being prefilled, a queue: it starts at the next iteration."""
    harness = Harness(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=100)
    harness.submit([1, 2], max_tokens=50, ignore_eos=True)
    harness.submit(prompt_of(60), max_tokens=30, ignore_eos=True)
    for i in range(4):
        harness.submit(prompt_of(20, i), max_tokens=10)
    harness.step()
    request_id = harness.submit([7, 8, 9], pooling="mean")
    harness.clock.now += 0.002
    updates = harness.step()
    assert (request_id, 0) in {(u.request_id, u.index) for u in updates if u.finish_reason}
    harness.run()
    harness.check_outputs()


def test_generation_does_not_wait_behind_embeddings() -> None:
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=100)
    for i in range(4):
        harness.submit(prompt_of(90, i), pooling="mean")
    harness.clock.now += 1
    harness.step()
    request_id = harness.submit([1, 2, 3], max_tokens=5, ignore_eos=True)
    harness.step()
    assert len(harness.output(request_id)) == 1
    for _ in range(4):
        harness.step()
    assert len(harness.output(request_id)) == 5
    harness.run()
    harness.check_outputs()


def test_a_batch_is_awaited_but_not_for_long() -> None:
    harness = Harness(embedding_batch_size=3, embedding_queue_delay=0.5)
    harness.submit([1, 2, 3], pooling="last")
    assert harness.engine.idle_seconds() == pytest.approx(0.5)
    assert harness.step() == []
    harness.submit([4, 5], pooling="last")
    harness.clock.now += 0.2
    assert harness.step() == []
    harness.submit([6], pooling="last")  # the preferred size
    assert harness.engine.idle_seconds() == 0
    assert len(harness.step()) == 3
    assert harness.executor.batches == [[3, 2, 1]]
    harness.submit([7, 8], pooling="last")
    harness.clock.now += 0.5
    assert len(harness.step()) == 1


class TestEncoder:
    def test_prompts_are_never_cut(self) -> None:
        harness = Harness(encoder=True, max_model_len=20, max_num_batched_tokens=30, max_num_seqs=8)
        for i in range(5):
            harness.submit(prompt_of(12 + i, i), pooling="mean")
        harness.clock.now += 1
        harness.run()
        assert harness.executor.batches == [[12, 13], [14, 15], [16]]
        harness.check_outputs()

    def test_nothing_is_cached(self) -> None:
        harness = Harness(encoder=True, max_model_len=40)
        for _ in range(2):
            request_id = harness.submit(prompt_of(33), pooling="last")
            harness.clock.now += 1
            harness.run()
            assert harness.cached(request_id) == 0
        assert harness.engine.stats().blocks_cached == 0

    def test_a_prompt_as_long_as_the_context_is_taken(self) -> None:
        harness = Harness(encoder=True, max_model_len=20, max_num_batched_tokens=33)
        harness.submit(prompt_of(20), pooling="cls")
        harness.clock.now += 1
        harness.run()
        harness.check_outputs()

    def test_it_generates_nothing(self) -> None:
        harness = Harness(encoder=True, max_model_len=20)
        with pytest.raises(ParameterError, match="can't generate"):
            harness.submit([1, 2], max_tokens=5)

    def test_the_budget_must_hold_the_longest_prompt(self) -> None:
        with pytest.raises(ParameterError, match="reads each input as a whole"):
            EngineConfig(encoder=True, max_model_len=300, max_num_batched_tokens=299)


def test_a_failing_executor_fails_the_request() -> None:
    harness = Harness()
    harness.executor.fail = lambda batch: 1 / 0  # type: ignore[assignment, return-value]
    request_id = harness.submit([1, 2, 3], pooling="mean")
    harness.clock.now += 1
    harness.run()
    end = harness.ends[request_id, 0]
    assert end.finish_reason is FinishReason.FAILED
    assert end.pooled is None
