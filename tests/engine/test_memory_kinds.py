"""Models with windows and recurrent states: what is kept, what is given back, what is found again.

That answers come out right whatever happens is held by the state machine (`test_invariants.py`);
this says what it costs.
"""

from __future__ import annotations

import pytest

from caudal.backends.executor import blocks_of_window
from caudal.engine.checkpoints import Checkpoints
from caudal.engine.request import FinishReason
from support.engine_harness import Harness

NEAR_END = Checkpoints(interval=2048, margin=2, worth=4)


def tokens(count: int, seed: int = 1) -> list[int]:
    return [(seed * 31 + 7 * i * i + i) % 49 + 1 for i in range(count)]


def ended(harness: Harness, prompt: list[int], **params: object) -> str:
    request = harness.submit(prompt, ignore_eos=True, **params)
    harness.run()
    harness.check_invariants()
    assert harness.reason(request) is FinishReason.LENGTH
    assert harness.output(request) == harness.expected(request)
    return request


def test_a_sequence_keeps_no_more_blocks_of_a_window_than_a_window_and_a_chunk_take() -> None:
    harness = Harness(windows=[(20, 10)], max_num_batched_tokens=17, max_num_seqs=1)
    harness.submit(tokens(60), max_tokens=30, ignore_eos=True)
    pool = harness.engine._memory.windows[0]
    most_between = most = 0
    while harness.engine.has_work:
        harness.step()
        most_between = max(most_between, pool.num_used)
        most = max(most, pool.num_blocks - pool.num_free)
        harness.check_invariants()
    assert most_between <= blocks_of_window(10, 4)
    assert pool.num_used == 0
    assert harness.engine.stats().blocks_used == 0


def test_a_pool_of_one_window_suffices_and_prompts_go_in_smaller_chunks() -> None:
    harness = Harness(windows=[(blocks_of_window(10, 4), 10)], max_num_batched_tokens=40)
    ended(harness, tokens(50), max_tokens=20)
    assert harness.engine.stats().preemptions == 0
    assert max(max(batch) for batch in harness.executor.batches) <= 16


@pytest.mark.parametrize(
    ("windows", "num_slots", "found"),
    [((), 0, 59), ([(40, 10)], 0, 59), ((), 8, 59), ([(40, 10)], 8, 59)],
    ids=["dense", "window", "states", "both"],
)
def test_the_next_turn_computes_what_is_new_only(
    windows: list[tuple[int, int]], num_slots: int, found: int
) -> None:
    harness = Harness(windows=windows, num_slots=num_slots, checkpoints=NEAR_END)
    prompt = tokens(40)
    first = ended(harness, prompt, max_tokens=20)
    history = prompt + harness.output(first)
    second = ended(harness, [*history, *tokens(9, 2)], max_tokens=5)
    # The last token of an answer is drawn and not computed.
    assert harness.cached(second) == found


@pytest.mark.parametrize(
    ("windows", "num_slots", "found"),
    [((), 0, 38), ([(40, 10)], 0, 38), ((), 8, 36), ([(40, 10)], 8, 36)],
    ids=["dense", "window", "states", "both"],
)
def test_a_turn_that_leaves_the_first_before_its_answer_goes_on_from_near_the_prompts_end(
    windows: list[tuple[int, int]], num_slots: int, found: int
) -> None:
    harness = Harness(windows=windows, num_slots=num_slots, checkpoints=NEAR_END)
    prompt = tokens(40)
    ended(harness, prompt, max_tokens=20)
    second = ended(harness, [*prompt[:38], 49, 49, 48, 49], max_tokens=5)
    assert harness.cached(second) == found


def test_a_long_prompts_checkpoints_are_found_by_one_that_branches_off_in_its_middle() -> None:
    for windows, num_slots in (([(40, 10)], 0), ((), 8)):
        harness = Harness(
            windows=windows,
            num_slots=num_slots,
            checkpoints=Checkpoints(interval=16, margin=2, worth=4),
        )
        prompt = tokens(70)
        ended(harness, prompt, max_tokens=3)
        # Blocks outside the window go first, and all but those of checkpoints can be had.
        cache = harness.engine._memory.cache
        assert cache is not None
        if windows:
            while cache._kinds[1].evictable() and min(cache._kinds[1].evictable().values()) < 0:
                assert cache.evict(1)
        branch = ended(harness, [*prompt[:37], 49, 49, 48, 49], max_tokens=2)
        assert harness.cached(branch) == 32


def test_without_its_snapshot_a_prefix_of_a_recurrent_model_is_computed_anew() -> None:
    harness = Harness(num_slots=3, checkpoints=NEAR_END)
    prompt = tokens(40)
    ended(harness, prompt, max_tokens=4)
    cache = harness.engine._memory.cache
    assert cache is not None
    while cache.evict(1):
        pass
    assert cache.num_nodes == 0  # what led to nothing else went with the snapshots
    assert harness.cached(ended(harness, prompt, max_tokens=4)) == 0


def test_snapshots_give_way_to_sequences_that_run() -> None:
    harness = Harness(num_slots=4, max_num_seqs=4)
    for seed in range(6):
        ended(harness, tokens(20, seed), max_tokens=4)
    names = [harness.submit(tokens(20, 10 + i), max_tokens=4, ignore_eos=True) for i in range(4)]
    while not harness.output(names[-1]):
        harness.step()
        harness.check_invariants()
    assert harness.engine.stats().running == 4
    harness.run()
    assert harness.engine.stats().preemptions == 0
    harness.check_outputs()


def test_no_more_sequences_run_than_there_are_slots() -> None:
    harness = Harness(num_slots=2, max_num_seqs=6)
    for seed in range(6):
        harness.submit(tokens(12, seed), max_tokens=8, ignore_eos=True)
    while harness.engine.has_work:
        harness.step()
        assert harness.engine.stats().running <= 2
        harness.check_invariants()
    harness.check_outputs()
    assert harness.engine.stats().preemptions == 0


def test_forks_share_a_state_until_each_has_written_its_own() -> None:
    harness = Harness(num_slots=5, windows=[(40, 10)], max_num_seqs=4)
    request = harness.submit(tokens(21), n=3, max_tokens=6, ignore_eos=True)
    while not harness.output(request):
        harness.step()
    slots = harness.engine._memory.slots
    assert slots is not None
    held = [seq.memory.slot for seq in harness.engine._scheduler.lanes.running]
    assert len(held) == 3
    assert len(set(held)) == 1
    harness.run()
    harness.check_invariants()
    harness.check_outputs()


def test_a_salt_sets_snapshots_apart() -> None:
    harness = Harness(num_slots=8, windows=[(40, 10)], checkpoints=NEAR_END)
    prompt = tokens(40)
    ended(harness, prompt, max_tokens=4, cache_salt="a")
    assert harness.cached(ended(harness, prompt, max_tokens=4, cache_salt="b")) == 0
    assert harness.cached(ended(harness, prompt, max_tokens=4, cache_salt="a")) == 36


@pytest.mark.parametrize(("margin", "batches"), [(2, [[32], [2, 4]]), (100, [[34, 14], [22]])])
def test_a_prefix_is_waited_for_only_where_a_state_will_be_kept_that_helps(
    margin: int, batches: list[list[int]]
) -> None:
    harness = Harness(
        num_slots=8,
        max_num_batched_tokens=48,
        max_num_seqs=4,
        checkpoints=Checkpoints(interval=2048, margin=margin, worth=4),
    )
    prompt = tokens(36)
    harness.submit(prompt[:34], max_tokens=1)
    harness.submit(prompt, max_tokens=1)
    harness.run()
    harness.check_outputs()
    assert harness.executor.batches == batches
