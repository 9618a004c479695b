"""Who runs when: budget, order, waiting for a shared prefix, preemption, admission."""

from __future__ import annotations

from typing import Any

import pytest

from caudal.engine.request import BACKGROUND, FinishReason
from caudal.engine.scheduler import URGENT_SECONDS
from support.engine_harness import Harness

PROMPT = list(range(1, 23))  # five blocks of four and a half


class TestBudget:
    def test_decodes_go_first_and_prefill_gets_the_rest(self) -> None:
        harness = Harness(max_num_seqs=3, max_num_batched_tokens=8)
        harness.submit([1, 2], max_tokens=20, ignore_eos=True)
        harness.submit([3, 4], max_tokens=20, ignore_eos=True)
        harness.step()
        harness.submit(PROMPT, max_tokens=5, ignore_eos=True)
        for _ in range(5):
            harness.step()
        assert harness.executor.batches == [
            [2, 2], [1, 1, 6], [1, 1, 6], [1, 1, 6], [1, 1, 4], [1, 1, 1]
        ]  # fmt: skip
        harness.run()
        harness.check_outputs()

    @pytest.mark.parametrize("budget", [9, 13, 64])
    @pytest.mark.parametrize("prefix_cache", [True, False])
    def test_tokens_are_the_same_alone_batched_chunked_and_cached(
        self, budget: int, prefix_cache: bool
    ) -> None:
        harness = Harness(max_num_seqs=8, max_num_batched_tokens=budget, prefix_cache=prefix_cache)
        for round_ in range(2):
            for i in range(10):
                harness.submit(PROMPT[: 3 + 2 * i], max_tokens=10 + i, seed=i % 3 + round_)
        harness.run()
        harness.check_outputs()


class TestCache:
    def test_the_same_prompt_twice_recomputes_its_last_token_only(self) -> None:
        harness = Harness()
        first = harness.submit(PROMPT, max_tokens=4, ignore_eos=True)
        harness.run()
        second = harness.submit(PROMPT, max_tokens=4, ignore_eos=True)
        harness.step()
        assert harness.executor.batches[-1] == [1]
        harness.run()
        assert harness.cached(first) == 0
        assert harness.cached(second) == len(PROMPT) - 1
        assert harness.output(first) == harness.output(second)

    def test_answers_are_cached_too(self) -> None:
        harness = Harness()
        first = harness.submit(PROMPT, max_tokens=9, ignore_eos=True)
        harness.run()
        turn = [*PROMPT, *harness.output(first), 7, 7]
        second = harness.submit(turn, max_tokens=2, ignore_eos=True)
        harness.run()
        assert harness.cached(second) == len(PROMPT) + 8  # the last token's KV was never needed
        harness.check_outputs()

    def test_salts_separate(self) -> None:
        harness = Harness()
        long, other = "x" * 100, "x" * 99 + "y"  # kept as digests
        salts = ((None, 0), ("a", 0), ("b", 0), ("a", 21), (long, 0), (other, 0), (long, 21))
        for salt, cached in salts:
            request = harness.submit(PROMPT, cache_salt=salt)
            harness.run()
            assert harness.cached(request) == cached

    def test_without_the_cache_nothing_is_kept(self) -> None:
        harness = Harness(prefix_cache=False)
        for _ in range(2):
            request = harness.submit(PROMPT)
            harness.run()
            assert harness.cached(request) == 0
        assert harness.engine.stats().blocks_cached == 0

    def test_a_prefix_being_computed_is_waited_for_not_computed_twice(self) -> None:
        harness = Harness(max_num_seqs=4, max_num_batched_tokens=64)
        requests = [harness.submit([*PROMPT, i], max_tokens=3, ignore_eos=True) for i in (1, 2, 3)]
        harness.step()
        assert harness.executor.batches == [[23]]
        harness.step()
        assert harness.executor.batches[1] == [1, 3, 3]  # one block of the prompt is private
        harness.run()
        assert [harness.cached(request) for request in requests] == [0, 20, 20]
        harness.check_outputs()

    def test_the_waiting_end_as_soon_as_their_part_is_there(self) -> None:
        harness = Harness(max_num_seqs=2, max_num_batched_tokens=12, max_model_len=100)
        harness.submit([*PROMPT, *PROMPT], max_tokens=1)
        short = harness.submit(PROMPT[:12], max_tokens=1)
        harness.step()
        harness.step()  # the first still has most of its prompt before it, and takes all
        assert not harness.output(short)
        harness.run()
        assert harness.cached(short) == 11

    def test_a_prefix_of_another_salt_is_not_waited_for(self) -> None:
        harness = Harness(max_num_batched_tokens=64)
        harness.submit(PROMPT, max_tokens=1, cache_salt="a")
        harness.submit(PROMPT, max_tokens=1, cache_salt="b")
        harness.step()
        assert harness.executor.batches == [[22, 22]]

    def test_small_overlaps_are_not_waited_for(self) -> None:
        harness = Harness(max_num_batched_tokens=64)
        harness.submit([1, 2, 3, 9, 9, 9, 9], max_tokens=1)  # less than a block in common
        harness.submit([1, 2, 3, 8, 8, 8, 8], max_tokens=1)
        harness.submit([5] * 4 + list(range(40, 0, -1)), max_tokens=1)  # one of eleven
        harness.submit([5] * 4 + list(range(1, 41)), max_tokens=1)
        harness.step()
        harness.run()
        assert harness.executor.batches[0] == [7, 7, 44, 6]

    def test_when_the_computing_request_is_cancelled_the_waiting_goes_on(self) -> None:
        harness = Harness(max_num_seqs=4, max_num_batched_tokens=8)
        first = harness.submit(PROMPT, max_tokens=3)
        second = harness.submit(PROMPT, max_tokens=3, ignore_eos=True)
        harness.step()
        harness.engine.cancel(first)
        harness.run()
        assert harness.reason(second) is FinishReason.LENGTH
        assert harness.cached(second) == 8  # what the first had got done
        harness.check_outputs()


class TestOrder:
    @staticmethod
    def first_tokens(harness: Harness) -> list[str]:
        order = []
        for update in harness.updates:
            if update.tokens and update.request_id not in order:
                order.append(update.request_id)
        return order

    @staticmethod
    def one_at_a_time(**config: Any) -> Harness:
        return Harness(max_num_seqs=1, **config)

    def test_the_longest_cached_prefix_goes_first(self) -> None:
        harness = self.one_at_a_time()
        harness.submit(PROMPT, name="warm", max_tokens=2)
        harness.run()
        harness.submit([40] * 6, name="none", max_tokens=2)
        harness.submit([*PROMPT[:8], 40], name="some", max_tokens=2)
        harness.submit(PROMPT, name="all", max_tokens=2)
        harness.run()
        assert self.first_tokens(harness) == ["warm", "all", "some", "none"]

    def test_fcfs_is_the_order_of_arrival(self) -> None:
        harness = self.one_at_a_time(schedule="fcfs")
        harness.submit(PROMPT, name="warm", max_tokens=2)
        harness.run()
        harness.submit([40] * 6, name="none", max_tokens=2)
        harness.submit(PROMPT, name="all", max_tokens=2)
        harness.run()
        assert self.first_tokens(harness) == ["warm", "none", "all"]

    @pytest.mark.parametrize("schedule", ["prefix", "fcfs"])
    def test_priority_comes_before_either(self, schedule: str) -> None:
        harness = self.one_at_a_time(schedule=schedule)
        harness.submit([1, 2], name="normal", max_tokens=2)
        harness.submit([3, 4], name="late", priority=1, max_tokens=2)
        harness.submit([5, 6], name="urgent", priority=-1, max_tokens=2)
        harness.run()
        assert self.first_tokens(harness) == ["urgent", "normal", "late"]

    @pytest.mark.parametrize("priority", [0, 3])
    def test_nobody_starves(self, priority: int) -> None:
        harness = self.one_at_a_time(ageing=5.0)
        harness.submit(PROMPT, max_tokens=1)
        harness.run()
        poor = harness.submit([40] * 6, max_tokens=1, priority=priority)
        for _ in range(200):  # a rival of better standing is always there
            harness.submit(PROMPT, max_tokens=1)
            harness.clock.now += 0.5
            harness.step()
            if harness.output(poor):
                break
        end = harness.ends[poor, 0]
        assert end.first_scheduled is not None
        waited = end.first_scheduled - end.submitted
        assert 0.5 < waited <= 5.0 * (priority + 2)


class TestPreemption:
    def test_when_blocks_run_out_the_latest_gives_way_and_loses_nothing(self) -> None:
        harness = Harness(num_blocks=8, max_model_len=32, max_num_seqs=2)
        first = harness.submit(PROMPT[:8], max_tokens=20, ignore_eos=True)
        second = harness.submit([30] * 8, max_tokens=20, ignore_eos=True)
        while not harness.engine.stats().preemptions:
            harness.step()
            harness.check_invariants()
        assert len(harness.output(first)) >= len(harness.output(second)) > 0
        harness.run()
        harness.check_outputs()

    def test_the_less_important_gives_way(self) -> None:
        harness = Harness(num_blocks=8, max_model_len=32, max_num_seqs=2)
        minor = harness.submit(PROMPT[:8], max_tokens=20, ignore_eos=True, priority=1)
        major = harness.submit([30] * 8, max_tokens=20, ignore_eos=True)
        harness.run()
        ends = [u.request_id for u in harness.updates if u.finish_reason]
        assert ends == [major, minor]
        harness.check_outputs()

    def test_resuming_costs_only_what_was_evicted(self) -> None:
        harness = Harness(num_blocks=16, max_model_len=64, max_num_seqs=2)
        harness.submit(PROMPT[:8], max_tokens=20, ignore_eos=True)
        harness.submit([30] * 8, max_tokens=20, ignore_eos=True)
        for _ in range(5):
            harness.step()
        scheduler: Any = harness.engine._scheduler
        scheduler.growing.preempt(scheduler.lanes.running[1])
        harness.check_invariants()
        harness.step()
        assert harness.executor.batches[-1] == [1, 1]
        harness.run()
        harness.check_outputs()

    @pytest.mark.parametrize("prefix_cache", [True, False])
    def test_a_pool_for_one_sequence_serves_many(self, prefix_cache: bool) -> None:
        harness = Harness(num_blocks=6, max_model_len=24, max_num_seqs=6, prefix_cache=prefix_cache)
        for i in range(12):
            harness.submit(PROMPT[: i + 1], n=1 + i % 3, max_tokens=None, ignore_eos=True)
        harness.run(limit=2000)
        harness.check_outputs()
        assert harness.engine.stats().preemptions > 0

    def test_a_preempted_tenant_stays_under_its_salt(self) -> None:
        harness = Harness(num_blocks=16, max_model_len=32, max_num_seqs=1)
        first = harness.submit(PROMPT[:3], max_tokens=12, ignore_eos=True, cache_salt="a")
        for _ in range(4):
            harness.step()
        scheduler: Any = harness.engine._scheduler
        # Nothing of it was in the tree before.
        scheduler.growing.preempt(scheduler.lanes.running[0])
        harness.step()
        assert harness.executor.batches[-1] == [1]  # found its own
        harness.run()
        other = harness.submit([*PROMPT[:3], *harness.output(first)], max_tokens=1)
        harness.run()
        assert harness.cached(other) == 0

    @pytest.mark.parametrize("evicted", [False, True])
    def test_prompt_scores_survive_preemption(self, evicted: bool) -> None:
        harness = Harness(num_blocks=16, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=4)
        harness.submit([30] * 4, max_tokens=26, ignore_eos=True)
        request = harness.submit(PROMPT, max_tokens=4, prompt_logprobs=0)
        for _ in range(3):
            harness.step()
        scheduler: Any = harness.engine._scheduler
        scheduler.growing.preempt(scheduler.lanes.running[1])
        if evicted:  # what was scored already is computed, but not scored, again
            while harness.engine._memory.cache.evict():  # type: ignore[union-attr]
                pass
        harness.run()
        harness.check_outputs()
        assert len(harness.prompt_logprobs[request]) == len(PROMPT) - 1


class TestAdmission:
    def test_continuous_joins_a_running_batch(self) -> None:
        harness = Harness()
        harness.submit([1, 2], max_tokens=5, ignore_eos=True)
        harness.step()
        late = harness.submit([3, 4], max_tokens=5, ignore_eos=True)
        harness.step()
        assert harness.output(late)

    def test_static_waits_for_the_batch_to_end(self) -> None:
        harness = Harness(batching="static", max_num_seqs=2, max_num_batched_tokens=3)
        for prompt in ([1, 2], [3, 4], [5, 6]):
            harness.submit(prompt, max_tokens=5, ignore_eos=True)
        while len(harness.ends) < 2:
            harness.step()
            assert not harness.output("r2")
        harness.run()
        harness.check_outputs()

    def test_dynamic_starts_with_as_many_as_may_run(self) -> None:
        harness = Harness(
            batching="dynamic", preferred_batch_size=8, max_num_seqs=2, max_queue_delay=10.0
        )
        harness.submit([1, 2], max_tokens=2, ignore_eos=True)
        harness.step()
        assert not harness.updates
        harness.submit([3, 4], max_tokens=2, ignore_eos=True)
        harness.step()
        assert harness.output("r0")
        assert harness.output("r1")

    def test_dynamic_starts_with_the_preferred_number(self) -> None:
        harness = Harness(batching="dynamic", preferred_batch_size=2, max_queue_delay=10.0)
        harness.submit([1, 2], max_tokens=2, ignore_eos=True)
        harness.step()
        assert not harness.updates
        assert harness.engine.idle_seconds() == pytest.approx(10.0)
        harness.submit([3, 4], max_tokens=2, ignore_eos=True)
        assert harness.engine.idle_seconds() == 0.0
        harness.step()
        assert harness.output("r0")
        assert harness.output("r1")

    def test_dynamic_starts_when_the_oldest_has_waited_long_enough(self) -> None:
        harness = Harness(batching="dynamic", preferred_batch_size=8, max_queue_delay=10.0)
        harness.submit([1, 2], max_tokens=2, ignore_eos=True)
        harness.clock.now += 10
        assert harness.engine.idle_seconds() == 0.0
        harness.step()
        assert harness.output("r0")

    def test_a_deadline_passes_while_dynamic_waits(self) -> None:
        harness = Harness(batching="dynamic", max_queue_delay=10.0, first_token_timeout=2.0)
        request = harness.submit([1, 2])
        assert harness.engine.idle_seconds() == pytest.approx(2.0)
        harness.clock.now += 2
        harness.run()
        assert harness.reason(request) is FinishReason.TIMEOUT

    def test_an_idle_engine_waits_for_submissions(self) -> None:
        harness = Harness()
        assert harness.engine.idle_seconds() is None
        assert harness.step() == []


class TestBackground:
    """What nobody waits for, beside one request that somebody does."""

    def test_its_prompts_are_computed_with_what_others_leave(self) -> None:
        harness = Harness(max_num_seqs=4, max_num_batched_tokens=8)
        for first in (1, 2):
            harness.submit([first] * 40, max_tokens=2, ignore_eos=True, priority=BACKGROUND)
        harness.step()
        urgent = harness.submit([3] * 10, max_tokens=2, ignore_eos=True)
        harness.step()
        assert harness.executor.batches[-1] == [8]
        harness.step()
        assert sorted(harness.executor.batches[-1]) == [1, 2]
        assert len(harness.output(urgent)) == 1
        harness.run()
        harness.check_outputs()

    def test_its_prompts_take_little_until_nothing_else_has_come_for_a_while(self) -> None:
        harness = Harness(max_num_seqs=4, max_num_batched_tokens=32)
        harness.submit([1] * 4, max_tokens=1, ignore_eos=True)
        harness.step()
        harness.submit([2] * 80, max_tokens=2, ignore_eos=True, priority=BACKGROUND)
        for seconds, batch in ((0, [2]), (URGENT_SECONDS - 1, [2]), (1, [32])):
            harness.clock.now += seconds
            harness.step()
            assert harness.executor.batches[-1] == batch
        harness.run()
        harness.check_outputs()

    def test_it_gives_up_places_and_blocks_at_once(self) -> None:
        for room in ({"max_num_seqs": 2}, {"num_blocks": 16, "max_num_seqs": 8}):
            harness = Harness(max_num_batched_tokens=32, max_model_len=32, **room)
            minor = [
                harness.submit([first] * 20, max_tokens=10, ignore_eos=True, priority=BACKGROUND)
                for first in (1, 2, 4)
            ]
            for _ in range(6):
                harness.step()
            urgent = [
                harness.submit([first] * 14, max_tokens=4, ignore_eos=True) for first in (5, 6)
            ]
            harness.step()
            assert all(len(harness.output(each)) == 1 for each in urgent)
            harness.check_invariants()
            harness.run()
            ends = [update.request_id for update in harness.updates if update.finish_reason]
            assert set(ends[:2]) == set(urgent)
            assert set(ends[2:]) == set(minor)
            harness.check_outputs()

    def test_it_never_grows_urgent(self) -> None:
        harness = Harness(max_num_seqs=1, ageing=1.0)
        harness.submit([9], max_tokens=3, ignore_eos=True)
        old = harness.submit([1] * 4, max_tokens=2, ignore_eos=True, priority=BACKGROUND)
        harness.clock.now += 24 * 3600
        new = harness.submit([2] * 4, max_tokens=2, ignore_eos=True)
        harness.run()
        ends = [update.request_id for update in harness.updates if update.finish_reason]
        assert ends[1:] == [new, old]

    def test_inputs_to_be_embedded_in_it_leave_answers_the_whole_budget(self) -> None:
        harness = Harness(max_num_batched_tokens=16, max_num_seqs=4)
        for first in range(3):
            harness.submit([first + 1] * 30, priority=BACKGROUND, pooling="mean")
        harness.step()
        harness.submit([3] * 16, max_tokens=2, ignore_eos=True)
        harness.step()
        assert harness.executor.batches[-1] == [16]
        harness.run()
        harness.check_outputs()
