from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.chat.events import ContentDelta, ReasoningDelta
from caudal.chat.reasoning import REASONING_FORMATS
from support.answers import answer_of, cut, events_of, joined, new_parser

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=5)
FORMATS = sorted(REASONING_FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_reasoning_is_told_from_the_answer(name: str):
    style = REASONING_FORMATS[name]
    for begin in style.begins:
        text = f"{begin}\nHmm, 2 + 2 …\n\nSo 4.\n{style.end}\n\nIt is 4.\n"
        assert joined(events_of(new_parser(reasoning=name), [text])) == [
            ReasoningDelta("Hmm, 2 + 2 …\n\nSo 4."),
            ContentDelta("It is 4.\n"),
        ]


@pytest.mark.parametrize("name", FORMATS)
def test_the_prompt_may_have_begun_it(name: str):
    text = f"Hmm.{REASONING_FORMATS[name].end}4"
    events = joined(events_of(new_parser(reasoning=name, open_already=True), [text]))
    assert events == [ReasoningDelta("Hmm."), ContentDelta("4")]


def test_reasoning_that_never_ends_stays_reasoning():
    assert joined(events_of(new_parser(reasoning="think"), ["<think>Hm</thi"])) == [
        ReasoningDelta("Hm</thi")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "4",
        "  4",
        "<thi",
        "The tag <think> begins, </think> ends it.",
        "</think>",
        "",
        "\n",
    ],
)
def test_an_answer_without_reasoning_is_left_as_it_is(text: str):
    events = joined(events_of(new_parser(reasoning="think"), [text]))
    assert events == ([ContentDelta(text)] if text else [])


def test_an_empty_block_leaves_no_trace():
    events = joined(events_of(new_parser(reasoning="think"), ["<think>\n\n</think>\n\n4"]))
    assert events == [ContentDelta("4")]


@pytest.mark.parametrize("name", FORMATS)
@given(
    text=st.data(),
    pieces=lengths,
    open_already=st.booleans(),
)
def test_any_chunking_gives_the_same(
    name: str, text: st.DataObject, pieces: list[int], open_already: bool
):
    style = REASONING_FORMATS[name]
    parts = st.sampled_from([*style.begins, style.end, style.end[:-1], "<", "a ", " é\n", "\n"])
    drawn = "".join(text.draw(st.lists(parts, max_size=10)))

    def parse(cuts: list[str]) -> list[object]:
        return list(joined(events_of(new_parser(reasoning=name, open_already=open_already), cuts)))

    assert parse(cut(drawn, pieces)) == parse([drawn])


@given(pieces=lengths)
def test_characters_know_whether_they_are_reasoning(pieces: list[int]):
    text = "<think>Hmm.</think>\n4"
    parser = new_parser(reasoning="think")
    events_of(parser, cut(text, pieces))
    assert [parser.in_reasoning(offset) for offset in range(len(text))] == (
        [True] * len("<think>Hmm.</think>") + [False] * 2
    )


@given(pieces=lengths)
def test_calls_follow_reasoning_and_are_not_looked_for_in_it(pieces: list[int]):
    call = '<tool_call>{"name": "now"}</tool_call>'
    text = f"<think>Should I {call}?</think>\nYes.\n{call}"
    events = events_of(new_parser("hermes", "think"), cut(text, pieces))
    answer = answer_of(events)
    assert answer.reasoning == f"Should I {call}?"
    assert answer.content == "Yes."
    assert [(found.name, found.arguments) for found in answer.tool_calls] == [("now", "{}")]
