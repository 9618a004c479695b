from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.chat.events import (
    ContentDelta,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallBegin,
    ToolCallEnd,
)
from caudal.chat.harmony import HARMONY
from support.answers import answer_of, cut, events_of, joined, new_parser

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=5)

THINKS = "<|channel|>analysis<|message|>Let me see.<|end|>"
ANSWERS = "<|start|>assistant<|channel|>final<|message|>It is 4."
CALLS = (
    "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Rome"}'
)
CALLS_BY_ROLE = (
    "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>"
    '{"city": "Rome"}<|call|>'
)
CALL = [
    ToolCallBegin(0, "call_0", "weather"),
    ToolCallArgumentsDelta(0, '{"city": "Rome"}'),
    ToolCallEnd(0),
]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (THINKS + ANSWERS, [ReasoningDelta("Let me see."), ContentDelta("It is 4.")]),
        (
            THINKS + ANSWERS + "<|return|>",
            [ReasoningDelta("Let me see."), ContentDelta("It is 4.")],
        ),
        ("<|channel|>final<|message|>4", [ContentDelta("4")]),
        (THINKS + CALLS, [ReasoningDelta("Let me see."), *CALL]),
        (THINKS + CALLS_BY_ROLE, [ReasoningDelta("Let me see."), *CALL]),
        (
            f"<|channel|>commentary<|message|>One moment.<|end|>{CALLS}",
            [ContentDelta("One moment."), *CALL],
        ),
        ("4, plainly.", [ContentDelta("4, plainly.")]),
        ("<|channel|>analysis<|message|>Let", [ReasoningDelta("Let")]),
        ("<|channel|>ana", [ContentDelta("<|channel|>ana")]),
        (" to=functions.now<|channel|>commentary<|message|>", []),
    ],
)
@pytest.mark.parametrize("live", [False, True])
@given(pieces=lengths)
def test_channels(text: str, events: list[object], live: bool, pieces: list[int]):
    if text.startswith(" to="):
        events = [
            ToolCallBegin(0, "call_0", "now"),
            ToolCallArgumentsDelta(0, "{}"),
            ToolCallEnd(0),
        ]
    parser = new_parser("openai", live=live)
    assert joined(events_of(parser, cut(text, pieces))) == events


@pytest.mark.parametrize("live", [False, True])
def test_a_call_that_is_cut_short_is_not_whole(live: bool):
    for end in range(len(CALLS) - len('{"city": "Rome"}'), len(CALLS)):
        parser = new_parser("openai", live=live)
        events = [*parser.push(CALLS[:end]), *parser.finish(cut=True)]
        assert not any(isinstance(event, ToolCallEnd) for event in events)
        assert parser.unfinished


def test_a_header_that_is_cut_short_is_no_content():
    for end in range(len("<|start|>"), len(CALLS) - len('<|message|>{"city": "Rome"}')):
        parser = new_parser("openai")
        assert [*parser.push(THINKS + CALLS[:end]), *parser.finish(cut=True)] == [
            ReasoningDelta("Let me see.")
        ]


def test_a_broken_call_is_content():
    text = THINKS + CALLS[:-2]
    answer = answer_of(events_of(new_parser("openai"), [text]))
    assert answer.tool_calls == []
    assert answer.content.endswith('<|message|>{"city": "Rome')


@given(
    parts=st.lists(
        st.sampled_from(
            [*HARMONY.markers, "analysis", "final", "commentary to=functions.now ", "{}", "a "]
        ),
        max_size=14,
    ),
    pieces=lengths,
    live=st.booleans(),
)
def test_any_chunking_of_anything_gives_the_same(parts: list[str], pieces: list[int], live: bool):
    text = "".join(parts)
    whole = joined(events_of(new_parser("openai", live=live), [text]))
    assert joined(events_of(new_parser("openai", live=live), cut(text, pieces))) == whole


@given(pieces=lengths)
def test_characters_know_whether_they_are_reasoning(pieces: list[int]):
    parser = new_parser("openai")
    text = THINKS + ANSWERS
    events_of(parser, cut(text, pieces))
    thought = [parser.in_reasoning(offset) for offset in range(len(text))]
    assert thought == [True] * len(THINKS) + [False] * len(ANSWERS)


@pytest.mark.parametrize(
    ("prompt_end", "events"),
    [
        ("<|channel|>final<|message|>It ", [ContentDelta("is 4.")]),
        ("<|channel|>analysis<|message|>It ", [ReasoningDelta("is 4.")]),
    ],
)
def test_a_message_can_be_continued(prompt_end: str, events: list[object]):
    parser = new_parser("openai", prompt_end=prompt_end)
    assert joined(events_of(parser, ["is 4."])) == events
