"""Draft models: what they compute follows what was accepted; the executor checks every read."""

from __future__ import annotations

import random

import pytest

from caudal.backends.executor import SampledToken, SamplingRow, WindowPool
from caudal.engine.drafting.draft_model import DraftModel
from caudal.engine.drafting.guess_rows import GuessRows, Rates
from caudal.engine.drafting.proposer import Asked
from caudal.engine.request import Generate, Request
from caudal.engine.sequence import Sequence, SequenceGroup
from caudal.engine.steps import RowsAhead
from caudal.sampling_params import SamplingParams
from support.fake_executor import FakeExecutor, next_token

VOCABULARY = 50


def sequence(prompt: list[int], seed: int) -> Asked:
    """A sequence that decodes, as a proposer is shown it."""
    work = Generate(params=SamplingParams(seed=seed, max_tokens=500))
    group = SequenceGroup(
        Request(request_id=f"r{seed}", prompt=prompt, work=work),
        arrival=0,
        submitted=0.0,
        seed=seed,
        max_output_tokens=500,
        eos_token_ids=frozenset(),
        suppressed_token_ids=frozenset(),
        constrained=False,
        jump_ahead=True,
    )
    seq = Sequence(group, [0])
    return Asked(
        number=seed,
        tokens=seq.tokens,
        prompt=len(prompt),
        space=group.space,
        prediction=(),
        params=work.params,
        seed=seed,
        stream=0,
        adapter=None,
        ahead=lambda: RowsAhead(seq),
    )


def grow(asked: Asked, *tokens: int) -> None:
    assert isinstance(asked.tokens, list)
    asked.tokens += tokens


def answer(asked: Asked, count: int) -> list[int]:
    """What the fake model, as itself, goes on with."""
    history = [*asked.tokens]
    for _ in range(count):
        history.append(next_token(history, asked.seed, asked.stream, VOCABULARY))
    return history[len(asked.tokens) :]


def propose(draft: DraftModel, *asked: tuple[Asked, int]) -> list[list[int]]:
    for each, most in asked:
        each.most = most
    return draft.propose([each for each, _ in asked])


def make_draft(executor: FakeExecutor, *, max_tokens: int = 64, length: int = 400) -> DraftModel:
    return DraftModel(executor, max_model_len=length, max_tokens=max_tokens)


def held(draft: DraftModel) -> int:
    """Blocks and slots that sequences have."""
    slots = draft.memory.slots
    pools = [draft.memory.pool, *draft.memory.windows, *(() if slots is None else (slots,))]
    return sum(pool.num_used for pool in pools)


@pytest.mark.parametrize(
    ("num_blocks", "num_slots", "windows"),
    [(400, 0, ()), (60, 0, ()), (60, 24, ()), (100, 12, (WindowPool(50, 10),))],
)
def test_guesses_are_those_of_the_model_itself_whatever_was_accepted(
    num_blocks: int, num_slots: int, windows: tuple[WindowPool, ...]
) -> None:
    """Sequences come and go, with answers that agree with the guesses or don't."""
    rng = random.Random(num_blocks + num_slots)
    executor = FakeExecutor(
        num_blocks=num_blocks,
        vocab_size=VOCABULARY,
        num_slots=num_slots,
        windows=windows,
        slides=False,  # what guesses have behind them may be seen again
    )
    draft = make_draft(executor, max_tokens=24)
    common = [rng.randrange(VOCABULARY) for _ in range(30)]
    live: list[Asked] = []
    guessed = 0
    for number in range(150):
        if len(live) < 6 and rng.random() < 0.3:
            tail = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 40))]
            live.append(sequence(common[: rng.randrange(31)] + tail, number))
        asked = [(seq, rng.randrange(1, 6)) for seq in live if rng.random() < 0.9]
        for (seq, most), guesses in zip(asked, propose(draft, *asked), strict=True):
            assert len(guesses) <= most
            assert guesses == answer(seq, len(guesses))
            guessed += len(guesses)
            right = rng.randrange(len(guesses) + 1)
            following = guesses[:right]
            if rng.random() < 0.8:  # as a rule something is drawn behind them
                following = [*following, rng.randrange(VOCABULARY)]
            if rng.random() < 0.1:
                following = answer(seq, 1)
            grow(seq, *following)
        for seq in [seq for seq in live if rng.random() < 0.05]:
            live.remove(seq)
            draft.ended(seq.number)
    assert guessed > 150
    for seq in live:
        draft.ended(seq.number)
    assert held(draft) == 0


def test_a_pass_for_each_guess_after_what_was_accepted_and_a_prompt_in_pieces() -> None:
    executor = FakeExecutor(num_blocks=100, vocab_size=VOCABULARY)
    draft = make_draft(executor, max_tokens=16)
    long, short = sequence(list(range(40)), 1), sequence([1, 2, 3], 2)
    assert [len(guesses) for guesses in propose(draft, (long, 4), (short, 4))] == [0, 4]
    # What lacks little comes first, and the long prompt takes what is left of 16 tokens.
    assert executor.batches == [[3, 13], [1], [1], [1]]
    executor.batches.clear()
    [guesses] = propose(draft, (short, 4))  # asked again, with nothing new
    assert guesses == answer(short, 4)
    assert executor.batches == []
    grow(short, *guesses, 7)  # all right: the last guess has yet to be computed
    propose(draft, (short, 2))
    assert executor.batches == [[2], [1]]
    executor.batches.clear()
    [guesses] = propose(draft, (short, 2))
    grow(short, guesses[0], (guesses[1] + 1) % VOCABULARY)  # the second wrong
    propose(draft, (short, 1))
    assert executor.batches == [[1]]


def test_what_is_lost_makes_no_difference_but_time() -> None:
    """A draft model that fails, or has no room, guesses nothing, and goes on later."""
    executor = FakeExecutor(num_blocks=8, vocab_size=VOCABULARY)
    draft = make_draft(executor)
    large, other = sequence(list(range(25)), 1), sequence(list(range(30, 40)), 2)
    assert propose(draft, (large, 3), (other, 3)) == [[], answer(other, 3)]
    draft.ended(large.number)
    draft.ended(other.number)
    [guesses] = propose(draft, (other, 3))
    assert guesses == answer(other, 3)

    def fail(batch: object) -> None:
        raise RuntimeError("no more")

    executor.fail = fail
    grow(other, *guesses[:1], 3)
    with pytest.raises(RuntimeError, match="no more"):
        propose(draft, (other, 3))
    assert held(draft) == 0
    executor.fail = None
    assert propose(draft, (other, 3)) == [answer(other, 3)]


def test_guesses_are_drawn_in_the_way_that_is_right_more_often() -> None:
    common = Rates()
    drawing = GuessRows(common)
    row = SamplingRow(SamplingParams(temperature=0.8, top_p=0.9), 1, 0, 0)
    assert [each.params.temperature for each in drawing.first(row)] == [0.8, 0.0]
    for drawn, likeliest, later in ((5, 6, 0.0), (6, 5, 0.8)):
        for _ in range(40):
            drawing.take([SampledToken(drawn), SampledToken(likeliest)])
            drawing.learn(6)
            drawing.learn(9)  # said twice, as where it is asked again
        assert drawing.take([SampledToken(1), SampledToken(2)]) == (2 if later == 0.0 else 1)
        again = SamplingRow(row.params, 1, 0, 1)
        assert drawing.later(again).params.temperature == later
        assert (GuessRows(common).take([SampledToken(1), SampledToken(2)]) == 2) == (later == 0.0)
    greedy = SamplingRow(SamplingParams(temperature=0.0), 1, 0, 0)
    assert GuessRows(common).first(greedy) == (greedy,)
