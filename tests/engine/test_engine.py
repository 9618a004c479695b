"""What the engine promises for one request: checks, ends, sampling rows, scores, forks."""

from __future__ import annotations

from typing import Any

import pytest

from caudal.backends.executor import Batch, SampledToken, StepResult
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.request import FinishReason
from caudal.errors import ContextOverflowError, ParameterError, QueueFullError
from support.engine_harness import EOS, Harness
from support.fake_executor import FakeExecutor, next_token

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def seed_where(first_is_eos: tuple[bool, ...], prompt: list[int] | None = None) -> int:
    """A seed with which stream i's first token is end-of-sequence, or is not, as asked."""
    history = PROMPT if prompt is None else prompt
    return next(
        seed
        for seed in range(100_000)
        if all(
            (next_token(history, seed, stream, 50) == EOS) == wanted
            for stream, wanted in enumerate(first_is_eos)
        )
    )


class TestChecks:
    def test_a_prompt_longer_than_the_context_names_both_numbers(self) -> None:
        harness = Harness(max_model_len=16)
        with pytest.raises(ContextOverflowError, match=r"16 tokens.*prompt has 16") as caught:
            harness.submit([1] * 16, max_tokens=None)
        assert (caught.value.max_model_len, caught.value.prompt_tokens) == (16, 16)
        with pytest.raises(ContextOverflowError):
            harness.submit([1] * 17, max_tokens=0)
        assert not harness.engine.has_work

    def test_an_answer_ends_where_the_context_does(self) -> None:
        harness = Harness(max_model_len=16)
        request = harness.submit(PROMPT, max_tokens=7, ignore_eos=True)
        harness.run()
        assert len(harness.output(request)) == 6
        assert harness.reason(request) is FinishReason.LENGTH

    def test_more_tokens_than_the_context_has_can_not_be_demanded(self) -> None:
        harness = Harness(max_model_len=16)
        with pytest.raises(ContextOverflowError) as error:
            harness.submit(PROMPT, max_tokens=9, min_tokens=7)
        assert error.value.param == "min_tokens"
        with pytest.raises(ContextOverflowError) as error:
            harness.submit(PROMPT, max_tokens=None, min_tokens=7)
        assert error.value.param == "min_tokens"

    @pytest.mark.parametrize(
        ("param", "prompt", "fields"),
        [
            ("prompt", [], {}),
            ("prompt", [1, 50], {}),
            ("prompt", [-1, 1], {}),
            ("prompt", [1.0, 2], {}),
            ("prompt", [True, 2], {}),
            ("logit_bias", [1], {"logit_bias": {50: 1.0}}),
            ("stop_token_ids", [1], {"stop_token_ids": [99]}),
            ("n", [1], {"n": 33}),
            ("timeout", [1], {"timeout": -1.0}),
            ("first_token_timeout", [1], {"first_token_timeout": float("nan")}),
        ],
    )
    def test_what_the_model_cannot_do_is_refused_by_name(
        self, param: str, prompt: list[Any], fields: dict[str, Any]
    ) -> None:
        harness = Harness()
        with pytest.raises(ParameterError) as caught:
            harness.submit(prompt, **fields)
        assert caught.value.param == param

    def test_an_id_in_use_is_refused_and_free_again_after_the_end(self) -> None:
        harness = Harness()
        harness.submit([1, 2], name="x")
        with pytest.raises(ValueError, match="'x' is in use"):
            harness.submit([1, 2], name="x")
        harness.run()
        harness.ends.clear()
        harness.submit([1, 2], name="x")

    def test_the_queue_limit_counts_those_without_a_free_place(self) -> None:
        harness = Harness(max_num_seqs=2, max_queue=3)
        for _ in range(5):
            harness.submit([1, 2, 3])
        with pytest.raises(QueueFullError) as caught:
            harness.submit([1])
        assert caught.value.most == 3
        assert caught.value.retry_after >= 1
        harness.step()
        with pytest.raises(QueueFullError):  # two run, three wait
            harness.submit([1])
        harness.run()
        harness.submit([1])

    def test_a_pool_that_cannot_hold_one_full_sequence_is_refused(self) -> None:
        with pytest.raises(ParameterError, match=r"max_model_len \(17\).*16 tokens"):
            Engine(FakeExecutor(4, 4), EngineConfig(max_model_len=17), frozenset())


class TestEnds:
    def test_the_end_of_sequence_token_is_reported_and_included(self) -> None:
        harness = Harness()
        request = harness.submit(PROMPT, seed=seed_where((True,)))
        harness.run()
        end = harness.ends[request, 0]
        assert end.finish_reason is FinishReason.STOP
        assert end.stop_token == EOS
        assert harness.output(request) == [EOS]

    def test_stop_token_ids_end_an_answer_even_when_eos_is_ignored(self) -> None:
        harness = Harness()
        free = harness.submit(PROMPT, max_tokens=12, ignore_eos=True)
        harness.run()
        stop = harness.output(free)[5]
        request = harness.submit(PROMPT, max_tokens=12, ignore_eos=True, stop_token_ids=[stop])
        harness.run()
        assert harness.output(request) == harness.output(free)[:6]
        assert harness.ends[request, 0].stop_token == stop

    def test_ignore_eos_goes_on(self) -> None:
        harness = Harness()
        request = harness.submit(PROMPT, seed=seed_where((True,)), max_tokens=4, ignore_eos=True)
        harness.run()
        assert harness.output(request)[0] == EOS
        assert len(harness.output(request)) == 4
        assert harness.reason(request) is FinishReason.LENGTH

    def test_min_tokens_bans_what_would_end_the_answer_until_then(self) -> None:
        harness = Harness(vocab_size=4)
        request = harness.submit([1, 2], min_tokens=20, max_tokens=None, stop_token_ids=[3])
        harness.run()
        output = harness.output(request)
        assert not {EOS, 3} & set(output[:20])
        assert len(output) > 20
        assert harness.reason(request) is FinishReason.STOP

    def test_without_max_tokens_an_answer_goes_as_far_as_the_context(self) -> None:
        harness = Harness(max_model_len=40)
        request = harness.submit(PROMPT, max_tokens=None, ignore_eos=True)
        harness.run()
        assert len(harness.output(request)) == 30
        assert harness.reason(request) is FinishReason.LENGTH

    def test_cancelling_frees_blocks_at_once_and_is_reported_once(self) -> None:
        harness = Harness(prefix_cache=False)
        request = harness.submit(PROMPT, max_tokens=50, ignore_eos=True)
        for _ in range(3):
            harness.step()
        assert harness.engine.stats().blocks_used > 0
        assert harness.engine.cancel(request)
        assert harness.engine.stats().blocks_free == 64
        assert not harness.engine.cancel(request)
        harness.run()
        assert harness.reason(request) is FinishReason.CANCELLED
        assert len(harness.output(request)) == 3

    def test_a_stop_string_found_outside_ends_the_sequence_as_a_stop(self) -> None:
        harness = Harness()
        request = harness.submit(PROMPT, n=2, max_tokens=20, ignore_eos=True)
        harness.step()
        assert harness.engine.cancel(request, 1, FinishReason.STOP)
        harness.run()
        assert harness.reason(request, 1) is FinishReason.STOP
        assert harness.output(request, 0) == harness.expected(request, 0)
        assert harness.engine.stats().finished[FinishReason.STOP] == 1

    def test_a_timeout_for_the_first_token(self) -> None:
        harness = Harness(max_num_seqs=1, first_token_timeout=20.0)
        running = harness.submit(PROMPT, max_tokens=50, ignore_eos=True)
        waiting = harness.submit(PROMPT)
        harness.step()
        harness.clock.now += 21
        harness.step()
        assert harness.reason(waiting) is FinishReason.TIMEOUT
        assert "no token after 21.0 s" in (harness.ends[waiting, 0].error or "")
        assert harness.reason(running) is None  # it has its first token
        harness.run()

    def test_a_timeout_for_the_whole_request_overrides_the_default(self) -> None:
        harness = Harness(request_timeout=5.0)
        short = harness.submit(PROMPT, max_tokens=50, ignore_eos=True)
        long = harness.submit(PROMPT, max_tokens=50, ignore_eos=True, timeout=60.0)
        harness.step()
        harness.clock.now += 6
        harness.run()
        assert harness.reason(short) is FinishReason.TIMEOUT
        assert harness.reason(long) is FinishReason.LENGTH
        harness.check_invariants()

    def test_time_counts_from_when_a_request_arrived(self) -> None:
        harness = Harness(request_timeout=5.0)
        harness.clock.now = 100.0
        prompt = [1, 2, 3]
        late = harness.submit(prompt, max_tokens=50, ignore_eos=True, arrived=94.0)
        early = harness.submit(prompt, max_tokens=1, ignore_eos=True, arrived=96.0)
        harness.run()
        assert harness.reason(late) is FinishReason.TIMEOUT
        assert "not complete after 6.0 s" in (harness.ends[late, 0].error or "")
        assert harness.reason(early) is FinishReason.LENGTH

    def test_what_pools_has_no_first_token_to_be_late(self) -> None:
        harness = Harness(first_token_timeout=5.0, batching="static")
        pooled = harness.submit([1, 2, 3], pooling="mean")
        harness.clock.now += 6
        harness.run()
        assert harness.reason(pooled) is FinishReason.STOP

    def test_requests_that_ended_in_time_are_not_kept_until_their_deadline(self) -> None:
        harness = Harness(request_timeout=3600.0, first_token_timeout=60.0)
        for _ in range(300):
            harness.submit([1], max_tokens=1)
            harness.run()
        deadlines: Any = harness.engine
        assert len(deadlines._deadlines._heap) <= 66

    def test_close_ends_everything_and_closes_the_executor(self) -> None:
        harness = Harness()
        harness.submit(PROMPT)
        harness.engine.close()
        harness.engine.close()
        assert harness.executor.closed
        assert harness.engine.num_requests == 0


class TestFailures:
    def test_a_failing_batch_ends_its_sequences_and_nothing_else(self) -> None:
        harness = Harness(max_num_seqs=2)
        victims = [harness.submit([*PROMPT, i], max_tokens=9, ignore_eos=True) for i in (1, 2)]
        survivor = harness.submit(PROMPT, max_tokens=5, ignore_eos=True)
        harness.step()

        def fail(batch: Batch) -> None:
            raise MemoryError("out of memory")

        harness.executor.fail = fail
        harness.step()
        harness.executor.fail = None
        for victim in victims:
            assert harness.reason(victim) is FinishReason.FAILED
            assert harness.ends[victim, 0].error == "MemoryError: out of memory"
        harness.check_invariants()
        harness.run()
        assert harness.output(survivor) == harness.expected(survivor)
        assert harness.engine.stats().executor_failures == 1

    def test_what_a_failed_sequence_computed_is_freed_not_cached(self) -> None:
        harness = Harness()
        request = harness.submit([1, 2, 3], max_tokens=9, ignore_eos=True)
        for _ in range(4):
            harness.step()

        def fail(batch: Batch) -> None:
            raise RuntimeError("broken")

        harness.executor.fail = fail
        harness.step()
        assert harness.reason(request) is FinishReason.FAILED
        assert harness.engine.stats().blocks_free == 64

    def test_an_executor_that_always_fails_fails_every_request_and_the_engine_lives(self) -> None:
        harness = Harness()

        def fail(batch: Batch) -> None:
            raise RuntimeError("broken")

        harness.executor.fail = fail
        for _ in range(5):
            request = harness.submit(PROMPT)
            harness.run()
            assert harness.reason(request) is FinishReason.FAILED
        harness.executor.fail = None
        request = harness.submit(PROMPT, max_tokens=3)
        harness.run()
        assert harness.output(request) == harness.expected(request)
        assert harness.cached(request) == 0  # nothing of a failed batch was kept

    @pytest.mark.parametrize(
        "results",
        [
            [],
            [StepResult()],
            [StepResult([SampledToken(1), SampledToken(1)])],
            [StepResult([SampledToken(50)])],
            [StepResult([SampledToken(-1)])],
        ],
    )
    def test_a_wrong_answer_of_the_executor_is_a_failure(
        self, monkeypatch: pytest.MonkeyPatch, results: list[StepResult]
    ) -> None:
        harness = Harness()
        monkeypatch.setattr(harness.executor, "collect", lambda: results)
        request = harness.submit(PROMPT)
        harness.run()
        assert harness.reason(request) is FinishReason.FAILED
        assert harness.engine.stats().blocks_free == 64

    def test_one_sequences_error_is_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """NaN logits, say: the rest of the batch goes on."""
        harness = Harness()
        victim = harness.submit([9, 9, 9], max_tokens=9, ignore_eos=True)
        survivor = harness.submit(PROMPT, max_tokens=5, ignore_eos=True)
        collect = harness.executor.collect

        def fail_first() -> list[StepResult]:
            return [StepResult(error="no usable logit"), *list(collect())[1:]]

        monkeypatch.setattr(harness.executor, "collect", fail_first)
        harness.step()
        monkeypatch.undo()
        assert harness.ends[victim, 0].error == "no usable logit"
        assert harness.reason(victim) is FinishReason.FAILED
        harness.run()
        assert harness.output(survivor) == harness.expected(survivor)


class TestForks:
    def test_n_sequences_share_one_prefill_and_differ(self) -> None:
        harness = Harness()
        request = harness.submit(PROMPT, n=4, max_tokens=8, ignore_eos=True)
        harness.step()
        assert harness.executor.batches == [[len(PROMPT)]]
        harness.check_invariants()
        assert harness.engine.stats().running == 4
        harness.run()
        harness.check_outputs()
        assert len({tuple(harness.output(request, i)) for i in range(4)}) == 4

    def test_a_request_of_n_waits_for_n_places(self) -> None:
        harness = Harness(max_num_seqs=3)
        first = harness.submit([1, 2, 3], max_tokens=5, ignore_eos=True)
        wide = harness.submit(PROMPT, n=3, max_tokens=3, ignore_eos=True)
        late = harness.submit([7, 8, 9], max_tokens=3, ignore_eos=True)
        for _ in range(5):
            harness.step()
            assert not harness.output(wide)
            assert not harness.output(late)  # nobody overtakes it into the places it needs
        harness.run()
        assert harness.reason(first) is FinishReason.LENGTH
        harness.check_outputs()

    def test_branches_may_be_cancelled_before_they_exist(self) -> None:
        harness = Harness(max_num_batched_tokens=40)
        request = harness.submit([1] * 60, n=3, max_tokens=4, ignore_eos=True)
        harness.step()  # half of the prompt
        assert harness.engine.cancel(request, 0)
        assert not harness.engine.cancel(request, 0)
        harness.run()
        assert harness.reason(request, 0) is FinishReason.CANCELLED
        assert harness.output(request, 0) == []
        for index in (1, 2):
            assert harness.output(request, index) == harness.expected(request, index)

    def test_a_branch_that_ends_at_once_leaves_the_other_its_block(self) -> None:
        harness = Harness()
        request = harness.submit(PROMPT, n=2, seed=seed_where((True, False)), max_tokens=9)
        harness.step()
        harness.check_invariants()
        harness.run()
        harness.check_invariants()
        assert harness.output(request, 0) == [EOS]
        assert harness.output(request, 1) == harness.expected(request, 1)
        assert harness.executor.copies == 1  # the prompt's last block is in the tree by then


class TestScores:
    def test_prompt_logprobs_cover_the_prompt_in_chunks_and_skip_the_cache(self) -> None:
        harness = Harness(max_num_seqs=2, max_num_batched_tokens=3)
        harness.submit(PROMPT, max_tokens=2)
        harness.run()
        request = harness.submit(PROMPT, max_tokens=2, prompt_logprobs=2)
        harness.run()
        harness.check_outputs()
        scores = harness.prompt_logprobs[request]
        assert [score.token for score in scores] == PROMPT[1:]
        assert [len(score.top) for score in scores] == [2] * 9
        assert harness.cached(request) == 0
        first = next(u for u in harness.updates if u.request_id == request)
        assert first.prompt_logprobs is not None
        again = harness.submit(PROMPT, max_tokens=2)
        harness.run()
        assert harness.cached(again) == len(PROMPT) - 1

    def test_max_tokens_zero_scores_the_prompt_and_ends(self) -> None:
        harness = Harness()
        request = harness.submit(PROMPT, max_tokens=0, prompt_logprobs=0)
        harness.run()
        assert harness.output(request) == []
        assert harness.reason(request) is FinishReason.LENGTH
        assert len(harness.prompt_logprobs[request]) == len(PROMPT) - 1
        harness.check_outputs()

    def test_a_prompt_of_one_token_has_no_scores(self) -> None:
        harness = Harness()
        request = harness.submit([3], max_tokens=1, prompt_logprobs=1)
        harness.run()
        assert list(harness.prompt_logprobs[request]) == []

    def test_logprobs_of_generated_tokens_are_passed_on(self) -> None:
        harness = Harness()
        request = harness.submit(PROMPT, max_tokens=3, logprobs=2, ignore_eos=True)
        harness.run()
        tokens = [t for u in harness.updates if u.request_id == request for t in u.tokens]
        assert all(t.logprob is not None and len(t.logprob.top) == 2 for t in tokens)


class TestRows:
    def test_histories_are_passed_only_to_penalties(self, monkeypatch: pytest.MonkeyPatch) -> None:
        harness = Harness()
        rows = []
        launch = harness.executor.launch

        def spy(batch: Batch) -> None:
            for step in batch.steps:
                for row in step.samples:
                    rows.append((list(row.prompt_tokens), list(row.output_tokens), row.step))
            launch(batch)

        monkeypatch.setattr(harness.executor, "launch", spy)
        harness.submit(PROMPT, max_tokens=2, ignore_eos=True)
        harness.run()
        assert rows == [([], [], 0), ([], [], 1)]
        rows.clear()
        request = harness.submit(PROMPT, max_tokens=2, ignore_eos=True, presence_penalty=1.0)
        harness.run()
        assert rows == [(PROMPT, [], 0), (PROMPT, harness.output(request)[:1], 1)]

    def test_without_a_seed_one_is_drawn(self) -> None:
        harness = Harness()
        for _ in range(2):
            harness.submit(PROMPT, max_tokens=10, ignore_eos=True, seed=None)
        harness.run()
        assert harness.output("r0") != harness.output("r1")

    def test_a_negative_seed_is_a_64_bit_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        harness = Harness()
        seeds: list[int] = []
        launch = harness.executor.launch

        def spy(batch: Batch) -> None:
            seeds.extend(row.seed for step in batch.steps for row in step.samples)
            launch(batch)

        monkeypatch.setattr(harness.executor, "launch", spy)
        harness.submit(PROMPT, max_tokens=1, seed=-1)
        harness.run()
        assert seeds == [2**64 - 1]


class TestReports:
    def test_times_of_a_request(self) -> None:
        harness = Harness(max_num_seqs=1)
        harness.submit(PROMPT, max_tokens=2, ignore_eos=True)
        request = harness.submit(PROMPT, max_tokens=2, ignore_eos=True)
        start = harness.clock.now
        for _ in range(4):
            harness.clock.now += 1
            harness.step()
        end = harness.ends[request, 0]
        assert end.submitted == start
        assert end.first_scheduled == start + 3
        assert end.first_token == start + 3
        assert end.time == start + 4

    def test_stats_count(self) -> None:
        harness = Harness()
        for _ in range(2):
            harness.submit(PROMPT, max_tokens=3, ignore_eos=True)
            harness.run()
        stats = harness.engine.stats()
        assert stats.prompt_tokens == 2 * len(PROMPT)
        assert stats.cache_hit_tokens == len(PROMPT) - 1
        assert stats.generated_tokens == 6
        assert stats.iterations == 6
        assert stats.batched_tokens == len(PROMPT) + 1 + 4
        assert stats.finished[FinishReason.LENGTH] == 2
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total == 64
        assert (stats.waiting, stats.running, stats.blocks_used) == (0, 0, 0)
