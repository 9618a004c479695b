"""Ten thousand requests of every kind through a pool that is far too small for them."""

from __future__ import annotations

import random

import pytest

from caudal.engine.request import BACKGROUND, FinishReason
from caudal.errors import QueueFullError
from support.engine_harness import Harness
from support.fake_executor import Batch


class _Unreliable:
    """Lets one batch in about a thousand fail."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, batch: Batch) -> None:
        if self._random.random() < 0.001:
            raise RuntimeError("a passing fault")


@pytest.mark.parametrize(("schedule", "requests"), [("prefix", 10_000), ("fcfs", 2_000)])
def test_thousands_of_requests_of_every_kind(schedule: str, requests: int) -> None:
    rng = random.Random(20_000)
    harness = Harness(
        num_blocks=24,
        block_size=4,
        vocab_size=40,
        max_model_len=48,
        max_num_seqs=8,
        max_num_batched_tokens=24,
        max_queue=40,
        schedule=schedule,
    )
    harness.executor.fail = _Unreliable(1)
    systems = [[rng.randrange(1, 40) for _ in range(rng.randrange(3, 18))] for _ in range(12)]
    live: list[str] = []
    rejected = 0
    submitted = 0
    while submitted < requests:
        for _ in range(rng.choice([0, 1, 1, 2])):
            try:
                live.append(_submit(harness, rng, systems))
                submitted += 1
            except QueueFullError as error:
                assert 1 <= error.retry_after <= 60
                rejected += 1
        if live and rng.random() < 0.05:
            harness.engine.cancel(rng.choice(live[-20:]), rng.choice([None, 0, 1]))
        harness.clock.now += 0.01
        harness.step()
        if submitted % 250 == 0:
            harness.check_invariants()
    harness.run(limit=20_000)
    harness.check_invariants()
    assert harness.ends.keys() == harness.outputs.keys()
    harness.check_outputs()

    stats = harness.engine.stats()
    assert sum(stats.finished.values()) == len(harness.outputs)
    assert all(stats.finished[reason] > 0 for reason in FinishReason), stats.finished
    assert stats.blocks_used == 0
    assert stats.preemptions > 50
    assert stats.cache_hit_tokens > stats.prompt_tokens // 20
    assert harness.executor.copies > 1000
    assert rejected > 0


def _submit(harness: Harness, rng: random.Random, systems: list[list[int]]) -> str:
    prompt = rng.choice(systems)[: rng.randrange(1, 18)]
    prompt = prompt + [rng.randrange(1, 40) for _ in range(rng.randrange(10))]
    return harness.submit(
        prompt,
        n=rng.choice([1, 1, 1, 1, 2, 4]),
        max_tokens=rng.choice([0, 1, 3, 6, 10, 16]),
        ignore_eos=rng.random() < 0.2,
        prompt_logprobs=rng.choice([None] * 9 + [1]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        priority=rng.choice([0, 0, 0, -1, 2, BACKGROUND]),
        cache_salt=rng.choice([None, None, "tenant"]),
        timeout=rng.choice([None] * 8 + [0.5]),
        first_token_timeout=rng.choice([None] * 8 + [0.3]),
        seed=rng.randrange(4),
    )
