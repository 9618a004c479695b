"""Muse Glimmer's answers: messages to itself, to the user, and to tools."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.chat.conversation import Conversation, Message, Tool, ToolCall
from caudal.chat.events import (
    ContentDelta,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallBegin,
    ToolCallEnd,
)
from caudal.chat.muse import MUSE_GLIMMER
from caudal.errors import ParameterError
from support.answers import answer_of, cut, events_of, joined, new_parser
from support.dialects import MODELS

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=5)

NEXT = "<|eom|><|start|>assistant"
THINKS = f" to=self<|message|>Let me see.{NEXT}"
ANSWERS = " to=user<|message|>It is 4."
CALLS = (
    " to=weather<|message|><atem:function_calls>\n"
    '<atem:invoke name="weather">\n'
    '<atem:parameter name="city"> Rome\n</atem:parameter>\n'
    '<atem:parameter name="days">3</atem:parameter>\n'
    '<atem:parameter name="tags">["a", null]</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)
CALLS_NOW = (
    ' to=now<|message|><atem:function_calls>\n<atem:invoke name="now">\n'
    "</atem:invoke>\n</atem:function_calls>"
)
CALL = [
    ToolCallBegin(0, "call_0", "weather"),
    ToolCallArgumentsDelta(0, '{"city": " Rome\\n", "days": 3, "tags": ["a", null]}'),
    ToolCallEnd(0),
]
CALL_NOW = [ToolCallBegin(1, "call_1", "now"), ToolCallArgumentsDelta(1, "{}"), ToolCallEnd(1)]
THOUGHT = ReasoningDelta("Let me see.")


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (THINKS + ANSWERS, [THOUGHT, ContentDelta("It is 4.")]),
        (THINKS + ANSWERS + "<|eot|>", [THOUGHT, ContentDelta("It is 4.")]),
        (ANSWERS, [ContentDelta("It is 4.")]),
        (THINKS + "<|message|>It is 4.", [THOUGHT, ContentDelta("It is 4.")]),
        (THINKS + THINKS + "<|message|>4", [ReasoningDelta("Let me see." * 2), ContentDelta("4")]),
        (THINKS + CALLS + "<|eot|>", [THOUGHT, *CALL]),
        (CALLS + NEXT + CALLS_NOW, [*CALL, *CALL_NOW]),
        (ANSWERS + NEXT + CALLS, [ContentDelta("It is 4."), *CALL]),
        ("It is 4, plainly.", [ContentDelta("It is 4, plainly.")]),
        (" to=self<|message|>Let", [ReasoningDelta("Let")]),
        (CALLS + "\n", CALL),
    ],
)
@pytest.mark.parametrize("live", [False, True])
@given(pieces=lengths)
def test_messages(text: str, events: list[object], live: bool, pieces: list[int]):
    parser = new_parser("muse_glimmer", live=live)
    assert joined(events_of(parser, cut(text, pieces))) == events


@pytest.mark.parametrize("live", [False, True])
def test_a_call_that_is_cut_short_is_none(live: bool):
    for end in range(CALLS.index("to=weather") + 4, CALLS.index("\n</atem:function_calls>")):
        parser = new_parser("muse_glimmer", live=live)
        events = [*parser.push(THINKS + CALLS[:end]), *parser.finish(cut=True)]
        assert not any(isinstance(event, ToolCallEnd) for event in events)
        assert parser.unfinished
        assert events[0] == THOUGHT
        assert not live or len(events) == 1


def test_a_header_that_is_cut_short_is_no_content():
    for end in range(len(CALLS[: CALLS.index("<|message|>")])):
        parser = new_parser("muse_glimmer")
        assert [*parser.push(CALLS[:end]), *parser.finish(cut=True)] == []


def test_what_follows_a_call_in_its_message_is_content():
    answer = answer_of(events_of(new_parser("muse_glimmer"), [CALLS_NOW + " Bye."]))
    assert [call.name for call in answer.tool_calls] == ["now"]
    assert answer.content.strip() == "Bye."


def test_what_is_no_call_is_content():
    for body in ("Hello", CALLS_NOW[:-30], "<atem:function_calls>Hi</atem:function_calls>"):
        text = f" to=now<|message|>{body}"
        answer = answer_of(events_of(new_parser("muse_glimmer"), [text]))
        assert answer.tool_calls == []
        assert answer.content == text


@given(
    parts=st.lists(
        st.sampled_from([*MUSE_GLIMMER.markers, " to=self", " to=user", CALLS, CALLS_NOW, "a "]),
        max_size=14,
    ),
    pieces=lengths,
    live=st.booleans(),
)
def test_any_chunking_of_anything_gives_the_same(parts: list[str], pieces: list[int], live: bool):
    text = "".join(parts)
    whole = joined(events_of(new_parser("muse_glimmer", live=live), [text]))
    assert joined(events_of(new_parser("muse_glimmer", live=live), cut(text, pieces))) == whole


TOOLS = [Tool(name="weather"), Tool(name="now")]
ASK = Message(role="user", content="Hi")


@pytest.mark.parametrize("said", ["", ANSWERS + NEXT])
def test_what_was_read_is_written_the_same_when_it_is_sent_back(tmp_path: Path, said: str):
    chat, _ = MODELS["muse"].load(tmp_path)
    text = THINKS + said + CALLS + NEXT + CALLS_NOW
    read = answer_of(events_of(new_parser("muse_glimmer"), [text]))
    calls = [
        ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in read.tool_calls
    ]
    messages = [
        ASK,
        Message(role="assistant", content=read.content, reasoning=read.reasoning, tool_calls=calls),
        *(Message(role="tool", content="4", tool_call_id=call.id) for call in calls),
    ]
    prompt = chat.render(Conversation(messages=messages, tools=TOOLS))
    assert f"<|start|>assistant{text}<|eot|><|start|>tool" in prompt


def test_effort_is_said_in_the_words_the_model_knows(tmp_path: Path):
    chat, _ = MODELS["muse"].load(tmp_path)
    heard = {"none": "low", "minimal": "low", "high": "high", "max": "xhigh"}
    for effort, word in heard.items():
        asked = Conversation(messages=[ASK], reasoning_effort=effort)  # type: ignore[arg-type]
        assert chat.render(asked).startswith(f"{word}<|start|>user")


@pytest.mark.parametrize("name", ["self", "user"])
def test_a_tool_cannot_be_named_like_another_recipient(tmp_path: Path, name: str):
    chat, _ = MODELS["muse"].load(tmp_path)
    with pytest.raises(ParameterError, match=f"can't call a tool named {name}") as refused:
        chat.prepare(Conversation(messages=[ASK], tools=[Tool(name=name)]))
    assert refused.value.param == "tools"
