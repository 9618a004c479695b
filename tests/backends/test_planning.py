"""How a budget goes to the kinds of memory that a program takes."""

from __future__ import annotations

import pytest

from caudal.backends.executor import blocks_of_window
from caudal.backends.native.planning import (
    Division,
    KindSizes,
    divide,
    division_of,
    least_bytes,
)

GEMMA = KindSizes(16, 3 * 1024, ((512, 15 * 1024),), 0)  # in the shape of Gemma 3 270M
HYBRID = KindSizes(16, 12 * 1024, (), 19 << 20)  # of Qwen3.5 0.8B
BOTH = KindSizes(16, 1024, ((64, 2048), (512, 4096)), 1 << 20)
DENSE = KindSizes(16, 1024, (), 0)


def division(sizes: KindSizes, budget: int, length: int = 4096, running: int = 32) -> Division:
    return divide(sizes, budget, length, max_num_seqs=running, max_num_batched_tokens=256)


@pytest.mark.parametrize("sizes", [DENSE, GEMMA, HYBRID, BOTH])
@pytest.mark.parametrize("budget", [1 << 26, 1 << 28, 1 << 30, 1 << 33])
def test_a_budget_is_used_and_not_exceeded(sizes: KindSizes, budget: int) -> None:
    divided = division(sizes, budget)
    assert divided.bytes(sizes) <= budget
    one_of_each = Division(1, (1,) * len(sizes.windows), min(sizes.slot_bytes, 1))
    assert divided.bytes(sizes) + one_of_each.bytes(sizes) >= budget


def test_a_dense_model_has_all_of_it_in_its_pool() -> None:
    assert division(DENSE, 100 * 16 * 1024 + 5) == Division(100, (), 0)


def test_all_that_may_run_have_a_window_and_a_slot() -> None:
    divided = division(BOTH, 1 << 31)
    for blocks, (window, _) in zip(divided.window_blocks, BOTH.windows, strict=True):
        assert blocks >= 32 * blocks_of_window(window, 16) + 256 // 16
    assert divided.num_slots > 32


def test_conversations_of_a_usual_length_fill_all_kinds_alike() -> None:
    divided = division(HYBRID, 1 << 33)
    conversations = divided.num_blocks * 16 / 4096
    assert divided.num_slots == pytest.approx(4 * conversations, abs=1)


def test_fewer_sequences_run_where_the_budget_is_small_but_one_long_one_fits() -> None:
    divided = division(HYBRID, 200 << 20, length=4096)
    assert divided.num_blocks * 16 >= 4096
    assert 2 <= divided.num_slots < 32
    least = least_bytes(GEMMA, 4096)
    assert division(GEMMA, least, 4096).num_blocks * 16 >= 4096
    assert division(GEMMA, least - 1, 4096).num_blocks * 16 < 4096


def test_sixteen_sequences_of_a_model_with_windows_take_a_quarter_of_full_keys_and_values() -> None:
    full = 16 * 8192 * 18 * 1024
    window_tokens = blocks_of_window(512, 16) * 16
    needed = 16 * (8192 * 3 * 1024 + window_tokens * 15 * 1024)
    assert needed <= full / 4
    divided = division(GEMMA, full // 4, 8192, running=16)
    assert divided.num_blocks * 16 >= 8192


@pytest.mark.parametrize("sizes", [DENSE, GEMMA, HYBRID, BOTH])
def test_all_sequences_are_as_long_as_asked_for_where_the_budget_suffices(sizes: KindSizes) -> None:
    """Then less is kept of conversations that have ended, and all that is left over is for that."""
    length, running = 32768, 4

    def divided(budget: int) -> Division:
        return divide(
            sizes,
            budget,
            length,
            max_num_seqs=running,
            max_num_batched_tokens=256,
            for_all=True,
        )

    blocks = running * length // 16
    least = division_of(sizes, blocks, running, 256, 0)
    budget = least.bytes(sizes)
    assert divided(budget) == least
    assert divided(budget - 1).num_blocks < blocks
    more = divided(budget + (64 << 20))
    assert more.num_blocks >= blocks
    assert more.bytes(sizes) <= budget + (64 << 20)
    assert sum(more.window_blocks) >= sum(least.window_blocks)
    usual = division_of(sizes, blocks, running, 256)
    assert divided(usual.bytes(sizes)) == usual == division(sizes, usual.bytes(sizes), length, 4)
