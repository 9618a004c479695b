"""Prompts that break their own prefix are noticed, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from caudal.engine.lost_prefixes import POSITIONS, LostPrefix
from support.engine_harness import Harness

RANDOM = random.Random(11)


def tokens(count: int) -> list[int]:
    return [RANDOM.randrange(1, 400) for _ in range(count)]


HEAD, BODY, MORE = tokens(37), tokens(300), tokens(90)


def lost_of(*prompts: Sequence[int], salts: Sequence[str | None] = (), **memory: Any) -> list[Any]:
    """What each of some prompts lost, asked one after another; the engine counts the same."""
    options = {"num_blocks": 1200, "vocab_size": 400, "max_model_len": 1000, **memory}
    harness = Harness(**options)
    lost = []
    for number, prompt in enumerate(prompts):
        salt = salts[number] if salts else None
        name = harness.submit(prompt, max_tokens=2, ignore_eos=True, cache_salt=salt)
        harness.run()
        assert harness.output(name) == harness.expected(name)
        lost.append(harness.ends[name, 0].lost)
    counted = harness.engine.stats().lost_tokens
    assert tuple(counted) == POSITIONS
    for position in POSITIONS:
        assert counted[position] == sum(
            each.tokens for each in lost if each is not None and each.bucket == position
        )
    return lost


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize(("before", "after"), [([7, 8, 9], [1, 2, 9]), ([7], [1, 2, 3, 4, 5])])
def test_a_hash_near_the_top(before: list[int], after: list[int], size: int):
    """One of another length, too; the next turn that is as long as ever loses as much."""
    first, second = [*HEAD, *before, *BODY], [*HEAD, *after, *BODY, *MORE]
    common = int(before[-1] == after[-1])
    end = len(HEAD) + len(before) - common
    lost = lost_of(first, second, [*second, 5, 6, 7], block_size=size)
    assert lost == [
        None,
        LostPrefix(len(HEAD), len(first) - end, len(after) - common, len(before) - common),
        None,  # it has the prefix of the one before
    ]


def test_each_difference_counts_what_is_behind_it():
    first = [*HEAD, 7, *BODY[:150], 8, *BODY[150:]]
    second = [*HEAD, 1, *BODY[:150], 2, *BODY[150:], *MORE]
    assert lost_of(first, second) == [None, LostPrefix(len(HEAD), len(BODY), 1, 1)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param([*HEAD, *BODY], [*HEAD, *BODY, *MORE], id="a turn that goes on"),
        pytest.param([*HEAD, *BODY], [*tokens(40), *MORE, *BODY], id="nothing agrees before"),
        pytest.param([*HEAD, 7, *BODY], [*HEAD, 8, *tokens(300)], id="nothing agrees behind"),
        pytest.param([*HEAD, *tokens(90), *BODY], [*HEAD, *tokens(90), *BODY], id="a long one"),
        pytest.param([*HEAD, 7, *BODY[:50]], [*HEAD, 8, *BODY[:50]], id="not worth it"),
    ],
)
def test_what_is_nothing_of_the_kind(first: list[int], second: list[int]):
    assert lost_of(first, second) == [None, None]


def test_what_others_have_cached_is_not_lost():
    first, second = [*HEAD, 7, *BODY], [*HEAD, 8, *BODY]
    assert lost_of(first, second, salts=["a", "b"]) == [None, None]
    assert lost_of(first, second, prefix_cache=False) == [None, None]


def test_what_was_evicted_is_not_lost():
    first, second = [*HEAD, 7, *BODY], [*HEAD, 8, *BODY]
    lost = lost_of(first, tokens(600), second, num_blocks=160, max_model_len=640)
    assert lost == [None, None, None]


@pytest.mark.parametrize("kinds", [{"windows": [(400, 32)]}, {"num_slots": 16}])
def test_windows_and_states_count_what_one_could_go_on_from(kinds: dict[str, Any]):
    first, second = [*HEAD, 7, *BODY], [*HEAD, 8, *BODY, *MORE]
    [_, lost] = lost_of(first, second, **kinds)
    assert lost.position == len(HEAD)
    assert 0 < lost.tokens <= len(BODY)
