"""What the tree gives up goes to memory or a disk and comes back; what doesn't is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caudal.engine.checkpoints import Checkpoints
from support.engine_harness import Harness

NEAR_END = Checkpoints(interval=16, margin=2, worth=4)
KINDS = {
    "dense": {},
    "windows": {"windows": [(40, 10), (30, 3)]},
    "states": {"num_slots": 9},
    "both": {"windows": [(40, 10)], "num_slots": 9},
}


def tokens(count: int, seed: int = 1) -> list[int]:
    return [(seed * 31 + 7 * i * i + i) % 49 + 1 for i in range(count)]


def tiered(**options: Any) -> Harness:
    harness = Harness(num_blocks=32, checkpoints=NEAR_END, max_num_seqs=4, **options)
    harness.threads = 1000
    return harness


def answered(harness: Harness, prompt: list[int], **params: Any) -> int:
    """Asks, checks the answer, and says how much of the prompt wasn't computed."""
    params = {"max_tokens": 5, "ignore_eos": True} | params
    request = harness.submit(prompt, **params)
    harness.run()
    harness.check_invariants()
    assert harness.output(request) == harness.expected(request)
    return harness.cached(request)


def crowd_out(harness: Harness) -> None:
    """Others come, until the pools have nothing of what was there."""
    for number in range(2, 6):
        answered(harness, tokens(80, number))


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_pools_gave_up_comes_back(kind: str, where: str, tmp_path: Path) -> None:
    tier = {"prefix_memory": 1 << 20} if where == "memory" else {"prefix_store": str(tmp_path)}
    harness = tiered(**KINDS[kind], **tier)
    prompt = tokens(60)
    assert answered(harness, prompt) == 0
    crowd_out(harness)
    found = answered(harness, [*prompt, *tokens(9, 3)])
    assert found == (60 if kind == "dense" else 56)  # a checkpoint
    stats = harness.engine.stats().tiers
    assert stats is not None
    assert stats.hits == 1
    assert stats.failures == 0
    hits = stats.memory_hit_tokens if where == "memory" else stats.disk_hit_tokens
    assert hits == found
