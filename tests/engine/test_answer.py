"""How answers grow: masks, jumps ahead, proposed tokens, forks, preemption, ends and failures."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.backends.executor import SampledToken, StepResult
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.request import FinishReason, Generate, Request
from caudal.sampling_params import SamplingParams
from caudal.structured_outputs import StructuredOutputsParams
from support.engine_harness import EOS, Harness
from support.fake_executor import FakeExecutor
from support.fake_grammar import SlotGrammar

PROMPT = [11, 12, 13, 14, 15]
FREE = frozenset(range(20, 40))


def slots(*parts: int | Collection[int]) -> list[Collection[int]]:
    """A number stands for a token that is forced."""
    return [[part] if isinstance(part, int) else part for part in parts]


def tokens_of_updates(harness: Harness, request_id: str) -> list[list[int]]:
    return [
        [sampled.token for sampled in update.tokens]
        for update in harness.updates
        if update.request_id == request_id
    ]


@pytest.mark.parametrize("jump_ahead", [True, False])
def test_only_allowed_tokens_are_drawn_and_a_complete_answer_ends(jump_ahead: bool) -> None:
    grammar = SlotGrammar(slots(1, 2, FREE, 3, 4, 5, FREE, FREE, 6))
    harness = Harness(jump_ahead=jump_ahead)
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50)
    harness.run()
    assert harness.output(request) == grammar.answer(PROMPT)
    assert harness.reason(request) is FinishReason.STOP
    assert harness.ends[request, 0].stop_token is None
    assert harness.engine.stats().generated_tokens == 9
    # Drawn: 3 free tokens; or all 9.
    assert len(harness.executor.batches) == (3 if jump_ahead else 9)


def test_forced_tokens_come_in_order_with_the_token_before_them() -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(1, 2, [20, 21], 3, 4, [22, 23], 5))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50)
    harness.run()
    one, two = grammar.answer(PROMPT)[2], grammar.answer(PROMPT)[5]
    assert tokens_of_updates(harness, request) == [[1, 2, one, 3, 4], [two, 5]]
    assert harness.executor.batches == [[7], [3]]


def test_what_is_certain_from_the_start_is_computed_with_the_prompt() -> None:
    harness = Harness()
    request = harness.submit(PROMPT, grammar=SlotGrammar(slots(1, 2, 3)), max_tokens=50)
    harness.run()
    assert harness.output(request) == [1, 2, 3]
    assert harness.reason(request) is FinishReason.STOP
    assert harness.executor.batches == [[7]]  # the last token was drawn, as the first that is new


@pytest.mark.parametrize("n", [1, 3])
def test_what_is_forced_is_no_part_of_the_prompt_where_it_is_cached(n: int) -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(*[9] * 30, FREE))
    for _ in range(3):
        request = harness.submit(PROMPT, grammar=grammar, max_tokens=90, n=n)
        harness.run()
        cached = {u.num_cached_tokens for u in harness.updates if u.request_id == request}
        assert all(0 <= count <= len(PROMPT) for count in cached)
    assert cached == {len(PROMPT)}
    stats = harness.engine.stats()
    assert (stats.prompt_tokens, stats.cache_hit_tokens) == (3 * len(PROMPT), 2 * len(PROMPT))


def test_a_long_jump_is_computed_in_chunks() -> None:
    harness = Harness(max_num_batched_tokens=8, max_num_seqs=4)
    grammar = SlotGrammar(slots(FREE, *[9] * 30, FREE))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=90)
    other = harness.submit([41, 42], max_tokens=12, ignore_eos=True)
    harness.run()
    assert harness.output(request) == grammar.answer(PROMPT)
    assert harness.output(other) == harness.expected(other)
    assert max(map(sum, harness.executor.batches)) <= 8


@pytest.mark.parametrize("jump_ahead", [True, False])
def test_forked_sequences_go_their_own_ways(jump_ahead: bool) -> None:
    grammar = SlotGrammar(slots(1, 2, FREE, 3, 4, FREE, 5, FREE))
    harness = Harness(jump_ahead=jump_ahead)
    request = harness.submit(PROMPT, grammar=grammar, n=4, max_tokens=50)
    harness.run()
    outputs = [harness.output(request, index) for index in range(4)]
    assert outputs == [grammar.answer(PROMPT, stream=index) for index in range(4)]
    assert len(set(map(tuple, outputs))) == 4
    harness.check_invariants()


def test_the_place_in_the_grammar_survives_preemption() -> None:
    grammar = SlotGrammar(slots(1, *[FREE, 2, 3] * 8, FREE))
    harness = Harness(num_blocks=16, block_size=4, max_model_len=60)
    prompts = [[n, *PROMPT] for n in range(5)]
    requests = [harness.submit(prompt, grammar=grammar, max_tokens=50) for prompt in prompts]
    harness.run()
    assert harness.engine.stats().preemptions > 0
    for request, prompt in zip(requests, prompts, strict=True):
        assert harness.output(request) == grammar.answer(prompt)
        assert harness.reason(request) is FinishReason.STOP
    harness.check_invariants()


@pytest.mark.parametrize("jump_ahead", [True, False])
@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_max_tokens_cuts_the_answer_anywhere(max_tokens: int, jump_ahead: bool) -> None:
    grammar = SlotGrammar(slots(1, 2, FREE, 3, 4, FREE, 5, 6))
    harness = Harness(jump_ahead=jump_ahead)
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=max_tokens)
    harness.run()
    assert harness.output(request) == grammar.answer(PROMPT)[:max_tokens]
    whole = max_tokens == 8
    assert harness.reason(request) is (FinishReason.STOP if whole else FinishReason.LENGTH)


def test_the_context_cuts_the_answer_too() -> None:
    harness = Harness(max_model_len=12)
    grammar = SlotGrammar(slots(1, FREE, *[2] * 20))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=None)
    harness.run()
    assert harness.output(request) == grammar.answer(PROMPT)[:7]
    assert harness.reason(request) is FinishReason.LENGTH


def test_end_of_sequence_ends_where_the_grammar_allows_it() -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(FREE, [EOS], FREE))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50)
    harness.run()
    assert harness.output(request)[1:] == [EOS]
    assert harness.reason(request) is FinishReason.STOP
    assert harness.ends[request, 0].stop_token == EOS


@pytest.mark.parametrize("asked", [{"min_tokens": 9}, {"ignore_eos": True}])
def test_an_unwanted_end_waits_as_long_as_the_grammar_can_go_on(asked: dict[str, int]) -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(FREE, [EOS, 8], [EOS, 9], [EOS], FREE))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50, **asked)
    harness.run()
    assert harness.output(request)[1:] == [8, 9]
    assert harness.reason(request) is FinishReason.STOP
    assert harness.ends[request, 0].stop_token is None


def test_a_forced_stop_token_ends_the_answer_as_a_drawn_one_does() -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(FREE, 3, 4, 5, FREE))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50, stop_token_ids=[4])
    harness.run()
    assert harness.output(request)[1:] == [3, 4]
    assert harness.ends[request, 0].stop_token == 4


def test_with_log_probabilities_every_token_is_drawn() -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(1, 2, FREE, 3, 4))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50, logprobs=2)
    harness.run()
    assert harness.output(request) == grammar.answer(PROMPT)
    sampled = [token for update in harness.updates for token in update.tokens]
    assert all(token.logprob is not None for token in sampled)


def test_with_log_probabilities_what_is_forced_is_drawn_in_one_iteration() -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(1, 2, FREE, *[3] * 7, FREE, 5, 6))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50, logprobs=0)
    harness.run()
    assert harness.output(request) == grammar.answer(PROMPT)
    assert harness.executor.batches == [[7], [8], [2]]
    assert list(map(len, tokens_of_updates(harness, request))) == [3, 8, 2]
    assert (harness.executor.accepted, harness.executor.rejected) == (10, 0)
    harness.check_invariants()


def test_where_another_token_is_drawn_what_was_proposed_behind_it_does_not_count() -> None:
    harness = Harness(block_size=2)  # proposals fill blocks of their own
    allowed = slots(FREE, *[[3, 26]] * 12, FREE)
    grammar = SlotGrammar(allowed, alike=range(1, 13))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50, logprobs=0)
    while harness.engine.has_work:
        harness.step()
        harness.check_invariants()
    answer = grammar.answer(PROMPT)
    assert harness.output(request) == answer
    assert harness.executor.rejected > 10
    assert harness.executor.accepted > 0
    scores = [token.logprob for update in harness.updates for token in update.tokens]
    assert [score.token for score in scores if score is not None] == answer
    follow_up = harness.submit([*PROMPT, *answer, 1], max_tokens=1)
    harness.run()
    assert harness.cached(follow_up) == len(PROMPT) + len(answer) - 1
    harness.check_outputs()


@pytest.mark.parametrize("drawn", [[], [9, 1], [1, 2, 3, 4]])
def test_an_executor_that_draws_on_behind_a_rejected_token_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, drawn: list[int]
) -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(1, 2, FREE))  # 1 and 2 are proposed, and three tokens drawn
    monkeypatch.setattr(
        harness.executor, "collect", lambda: [StepResult([SampledToken(t) for t in drawn])]
    )
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50, logprobs=0)
    harness.run()
    assert harness.reason(request) is FinishReason.FAILED
    assert harness.engine.stats().blocks_free == 64


def test_a_long_text_is_proposed_piece_by_piece() -> None:
    harness = Harness(num_blocks=100, max_model_len=200)
    grammar = SlotGrammar(slots(FREE, *[3] * 100, FREE))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=None, logprobs=0)
    harness.run()
    assert harness.output(request) == grammar.answer(PROMPT)
    assert harness.executor.batches == [[5], [33], [33], [33], [2]]


def test_a_proposal_takes_nobodys_place() -> None:
    harness = Harness(num_blocks=8, block_size=4, max_model_len=32, max_num_seqs=2)
    other = harness.submit([41, 42], max_tokens=14, ignore_eos=True)
    harness.step()
    grammar = SlotGrammar(slots(FREE, *[3] * 18))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50, logprobs=0)
    harness.run()
    assert harness.engine.stats().preemptions == 0
    assert harness.executor.accepted > 0
    assert harness.output(request) == grammar.answer(PROMPT)
    assert harness.output(other) == harness.expected(other)


def test_prompt_scores_are_of_the_prompt_alone() -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(1, 2, 3, FREE, 4))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50, prompt_logprobs=1)
    harness.run()
    assert [score.token for score in harness.prompt_logprobs[request]] == PROMPT[1:]
    assert harness.output(request) == grammar.answer(PROMPT)


def test_penalties_see_forced_tokens() -> None:
    harness = Harness()  # the executor checks the history
    grammar = SlotGrammar(slots(1, 2, FREE, 3, 4, FREE))
    request = harness.submit(PROMPT, grammar=grammar, max_tokens=50, presence_penalty=1.0)
    harness.run()
    assert harness.output(request) == grammar.answer(PROMPT)


def test_a_jump_is_cached_for_others() -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(FREE, *[3] * 12, FREE))
    first = harness.submit(PROMPT, grammar=grammar, max_tokens=50)
    harness.run()
    follow_up = harness.submit([*PROMPT, *harness.output(first), 1], max_tokens=1)
    harness.run()
    assert harness.cached(follow_up) == len(PROMPT) + 13
    harness.check_invariants()


@pytest.mark.parametrize("method", ["allowed", "accept", "forced"])
@pytest.mark.parametrize("place", [0, 3])
def test_a_failing_matcher_fails_its_request_alone(method: str, place: int) -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(1, FREE, 2, FREE, 3, FREE, 4), broken={method: place})
    broken = harness.submit(PROMPT, grammar=grammar, max_tokens=50, n=2)
    other = harness.submit([41, 42], max_tokens=12, ignore_eos=True)
    harness.run()
    for index in range(2):
        assert harness.reason(broken, index) is FinishReason.FAILED
        assert harness.ends[broken, index].error == f"{method} is broken"
    assert harness.output(other) == harness.expected(other)
    harness.check_invariants()


def test_a_grammar_that_allows_nothing_fails_its_request_alone() -> None:
    harness = Harness()
    broken = harness.submit(PROMPT, grammar=SlotGrammar(slots(FREE, [])), max_tokens=50)
    other = harness.submit([41, 42], max_tokens=12, ignore_eos=True)
    harness.run()
    assert harness.reason(broken) is FinishReason.FAILED
    assert harness.output(other) == harness.expected(other)


def test_a_form_that_was_not_compiled_is_not_forgotten() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json_object=True))
    request = Request(request_id="r", prompt=PROMPT, work=Generate(params))
    engine = Engine(FakeExecutor(), EngineConfig(max_model_len=100), frozenset())
    with pytest.raises(ValueError, match="takes a grammar"):
        engine.submit(request)
    assert not engine.has_work


def test_cancelling_works_before_and_after_a_jump() -> None:
    harness = Harness()
    grammar = SlotGrammar(slots(1, 2, FREE, *[3] * 10, FREE, 4, FREE))
    early = harness.submit(PROMPT, grammar=grammar, max_tokens=50, n=2)
    harness.engine.cancel(early, 1)
    harness.step()
    harness.engine.cancel(early)
    harness.run()
    assert harness.reason(early, 0) is FinishReason.CANCELLED
    harness.check_invariants()


slot_lists = st.lists(
    st.one_of(
        st.integers(1, 49).map(lambda token: [token]),
        st.sets(st.integers(1, 49), min_size=2, max_size=20),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=150)
@given(
    grammars=st.lists(slot_lists, min_size=1, max_size=5),
    jump_ahead=st.booleans(),
    prefix_cache=st.booleans(),
    num_blocks=st.integers(16, 40),
    budget=st.integers(6, 30),
    n=st.integers(1, 3),
    alike=st.none() | st.sets(st.integers(0, 24)),
)
def test_an_answer_is_the_same_however_it_is_batched(
    grammars: list[Sequence[Collection[int]]],
    jump_ahead: bool,
    prefix_cache: bool,
    num_blocks: int,
    budget: int,
    n: int,
    alike: set[int] | None,
) -> None:
    """With log-probabilities tokens are proposed, and not always drawn where others are alike."""
    harness = Harness(
        num_blocks=num_blocks,
        block_size=2,
        max_model_len=32,
        max_num_seqs=5,
        max_num_batched_tokens=budget,
        prefix_cache=prefix_cache,
        jump_ahead=jump_ahead,
    )
    logprobs = None if alike is None else 0
    requests = [
        (harness.submit(PROMPT, grammar=grammar, n=n, max_tokens=25, logprobs=logprobs), grammar)
        for grammar in (SlotGrammar(each, alike=alike or ()) for each in grammars)
    ]
    harness.run()
    for request, grammar in requests:
        for index in range(n):
            assert harness.output(request, index) == grammar.answer(PROMPT, stream=index)
            assert harness.reason(request, index) is FinishReason.STOP
    harness.check_invariants()
