"""What the tree gives up goes to memory or a disk and comes back; what doesn't is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from caudal.engine.checkpoints import Checkpoints
from caudal.engine.engine import READING_SECONDS
from caudal.engine.request import FinishReason
from support.engine_harness import Harness, stepwise_store

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kill", [False, True])
def test_what_was_saved_is_there_after_a_restart(kind: str, kill: bool, tmp_path: Path) -> None:
    """What was saved while nothing was computed is there after a kill, too."""
    harness = tiered(**KINDS[kind], prefix_store=str(tmp_path))
    prompt = tokens(60)
    answered(harness, prompt, max_tokens=6)
    if kill:
        while harness.tier.save():
            pass
        harness.work_threads(1000)
    answers = list(harness.outputs.values())
    harness.restart(kill=kill)
    again = [*prompt, *answers[0], 9, 9]
    assert answered(harness, again) == {"dense": 64, "windows": 64}.get(kind, 65)
    assert answered(harness, prompt[:30], cache_salt="somebody") == 0
    harness.restart()
    harness.executor.model = "another"
    with stepwise_store():
        harness.engine = harness._open()
    assert answered(harness, again) == 0


def test_what_others_wrote_is_found_and_what_they_deleted_is_computed(tmp_path: Path) -> None:
    """Two processes share a directory."""
    one, other = (tiered(prefix_store=str(tmp_path)) for _ in range(2))
    prompt = tokens(60)
    answered(one, prompt)
    while one.tier.save():
        pass
    one.work_threads(100)
    disk = other.tier.store.disk
    assert disk is not None
    disk.scan()
    assert answered(other, prompt) == 56
    crowd_out(other)
    for file in tmp_path.rglob("*.kv"):
        file.unlink()
    assert answered(other, prompt) == 0
    stats = other.engine.stats().tiers
    assert stats is not None
    assert stats.hits == 1


@pytest.mark.parametrize("end", ["arrives", "cancel", "timeout", "damaged"])
def test_others_go_on_while_a_prefix_is_read_and_who_waits_may_leave(
    end: str, tmp_path: Path
) -> None:
    harness = tiered(prefix_store=str(tmp_path))
    prompt = tokens(60)
    answered(harness, prompt)
    crowd_out(harness)
    harness.threads = 0  # the disk takes its time
    waits = harness.submit(prompt, max_tokens=5, ignore_eos=True, timeout=10.0)
    alike = harness.submit([*prompt, 9], max_tokens=5, ignore_eos=True)
    other = harness.submit(tokens(30, 8), max_tokens=5, ignore_eos=True)
    with patch.object(harness.tier, "_plan", wraps=harness.tier._plan) as planned:
        for _ in range(20):
            harness.step()
            harness.check_invariants()
    assert planned.call_count == 3, "once for each, however long it takes"
    assert harness.reason(other) is FinishReason.LENGTH
    assert harness.engine.stats().running == 0
    assert harness.engine.idle_seconds() == READING_SECONDS
    if end == "cancel":
        harness.engine.cancel(waits)
    elif end == "timeout":
        harness.clock.now += 11.0
    elif end == "damaged":
        for file in tmp_path.rglob("*.kv"):
            file.write_bytes(file.read_bytes()[:-1])
    harness.clock.now += READING_SECONDS
    harness.threads = 1000
    harness.run()
    harness.check_invariants()
    harness.check_outputs()
    reasons = {"cancel": FinishReason.CANCELLED, "timeout": FinishReason.TIMEOUT}
    assert harness.reason(waits) is reasons.get(end, FinishReason.LENGTH)
    assert harness.reason(alike) is FinishReason.LENGTH
    if end in ("arrives", "cancel"):
        assert harness.cached(alike) >= 56


def test_a_prefix_is_computed_where_that_is_faster(tmp_path: Path) -> None:
    harness = tiered(prefix_store=str(tmp_path))
    prompt = tokens(60)
    answered(harness, prompt)
    crowd_out(harness)
    disk = harness.tier.store.disk
    assert disk is not None
    harness.tier.observe(100, 0.1)
    disk.rate = 1000.0  # bytes a second
    assert answered(harness, prompt) == 0
    stats = harness.engine.stats().tiers
    assert stats is not None
    assert stats.declined == 1
    crowd_out(harness)
    disk.rate = 1e6
    assert answered(harness, prompt) == 56
