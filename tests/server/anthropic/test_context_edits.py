"""`context_management`: what is left out of the prompt, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.running_server import RunningServer

Converse = Callable[..., RunningServer]

CLEARED = "[This result was removed from the conversation to make room.]"
THINKING = "clear_thinking_20251015"
TOOL_USES = "clear_tool_uses_20250919"


def turn(number: int, result: str) -> list[dict[str, Any]]:
    """A question, a thoughtful call, its result, and an answer after more thought."""
    thought = {"type": "thinking", "thinking": f"Thought {number}.", "signature": "s"}
    call = {"type": "tool_use", "id": f"t{number}", "name": "look", "input": {"at": number}}
    found = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
    return [
        {"role": "user", "content": f"Question {number}?"},
        {"role": "assistant", "content": [thought, call]},
        {"role": "user", "content": [found]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "So."}]},
    ]


HISTORY = [
    *(message for number in range(1, 6) for message in turn(number, f"Result {number}." * 20)),
    {"role": "user", "content": "And now?"},
]


def size(server: RunningServer, messages: list[Any] = HISTORY, **fields: Any) -> dict[str, Any]:
    body = {"model": "fake", "messages": messages} | fields
    response = server.http.post("/v1/messages/count_tokens", json=body)
    assert response.status_code == 200, response.text
    counted: dict[str, Any] = response.json()
    return counted


def applied(server: RunningServer, *edits: dict[str, Any], stream: bool = False) -> Any:
    """What an answer says was applied, once its prompt is as long as that makes it."""
    management = {"context_management": {"edits": list(edits)}}
    body = {"model": "fake", "max_tokens": 9, "messages": HISTORY, "stream": stream} | management
    response = server.http.post("/v1/messages?beta=true", json=body)
    assert response.status_code == 200, response.text
    if stream:
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line[:1] == "d"]
        message = {**events[0]["message"], **events[-2]}
        assert "context_management" not in events[0]["message"]
    else:
        message = response.json()
    usage = message["usage"]
    tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    whole = size(server)["input_tokens"]
    done: list[dict[str, Any]] = message["context_management"]["applied_edits"]
    assert tokens == whole - sum(edit["cleared_input_tokens"] for edit in done)
    counted = size(server, **management)
    assert counted["input_tokens"] == tokens
    assert counted["context_management"] == {"original_input_tokens": whole}
    return done


def without(messages: list[Any], change: Callable[[dict[str, Any]], Any]) -> list[Any]:
    """Messages with blocks changed, and those left out that become None."""
    changed = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            content = [new for block in content if (new := change(dict(block))) is not None]
        changed.append(message | {"content": content})
    return changed


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_of_earlier_turns_is_cleared(converse: Converse, stream: bool):
    server = converse("Yes.")
    for keep, kept in (
        ({"keep": {"type": "thinking_turns", "value": 2}}, {4, 5}),
        ({}, {5}),
    ):

        def change(block: dict[str, Any], kept: set[int] = kept) -> Any:
            thinks = block["type"] == "thinking"
            return None if thinks and int(block["thinking"][8]) not in kept else block

        smaller = size(server, without(HISTORY, change))["input_tokens"]
        [edit] = applied(server, {"type": THINKING} | keep, stream=stream)
        assert edit == {
            "type": THINKING,
            "cleared_thinking_turns": 5 - len(kept),
            "cleared_input_tokens": size(server)["input_tokens"] - smaller,
        }


@pytest.mark.parametrize("keep", ["all", {"type": "all"}, {"type": "thinking_turns", "value": 5}])
def test_nothing_is_cleared_where_all_is_kept(converse: Converse, keep: Any):
    assert applied(converse("Yes."), {"type": THINKING, "keep": keep}) == []


def test_no_edits_are_said_to_have_been_none(converse: Converse):
    server = converse("Yes.")
    assert applied(server) == []
    body = {"model": "fake", "max_tokens": 9, "messages": HISTORY}
    assert "context_management" not in server.http.post("/v1/messages", json=body).json()


@pytest.mark.parametrize("stream", [False, True])
def test_results_of_earlier_tool_uses_are_cleared(converse: Converse, stream: bool):
    server = converse("Yes.")
    edit = {
        "type": TOOL_USES,
        "trigger": {"type": "tool_uses", "value": 4},
        "keep": {"type": "tool_uses", "value": 2},
    }

    def change(block: dict[str, Any]) -> Any:
        old = block.get("tool_use_id") in ("t1", "t2", "t3")
        return block | {"content": CLEARED} if old else block

    smaller = size(server, without(HISTORY, change))["input_tokens"]
    [done] = applied(server, edit, stream=stream)
    assert done == {
        "type": TOOL_USES,
        "cleared_tool_uses": 3,
        "cleared_input_tokens": size(server)["input_tokens"] - smaller,
    }


@pytest.mark.parametrize(
    ("more", "cleared"),
    [
        ({"trigger": {"type": "input_tokens", "value": 100}}, 2),
        ({"trigger": {"type": "input_tokens", "value": 100_000}}, None),
        ({}, None),  # which is the default
        ({"trigger": {"type": "tool_uses", "value": 5}}, None),
        ({"exclude_tools": ["look"]}, None),
        ({"exclude_tools": ["other"]}, 2),
        ({"keep": {"type": "tool_uses", "value": 0}}, 5),
        ({"keep": {"type": "tool_uses", "value": 9}}, None),
        ({"clear_at_least": {"type": "input_tokens", "value": 50}}, 2),
        ({"clear_at_least": {"type": "input_tokens", "value": 50_000}}, None),
    ],
)
def test_when_tool_uses_are_cleared(converse: Converse, more: dict[str, Any], cleared: int | None):
    edit = {"type": TOOL_USES}
    if more:
        edit |= {"trigger": {"type": "tool_uses", "value": 1}} | more
    done = applied(converse("Yes."), edit)
    assert [each["cleared_tool_uses"] for each in done] == ([] if cleared is None else [cleared])


@pytest.mark.parametrize(("inputs", "are"), [(True, True), (["look"], True), (["x"], False)])
def test_inputs_are_cleared_where_that_is_asked_for(converse: Converse, inputs: Any, are: bool):
    server = converse("Yes.")
    edit = {"type": TOOL_USES, "trigger": {"type": "tool_uses", "value": 1}}
    [results] = applied(server, edit)
    [both] = applied(server, edit | {"clear_tool_inputs": inputs})
    gained = both["cleared_input_tokens"] - results["cleared_input_tokens"]
    assert (gained > 0) is are


def test_edits_are_applied_one_after_the_other(converse: Converse):
    first, second = applied(
        converse("Yes."),
        {"type": THINKING},
        {"type": TOOL_USES, "trigger": {"type": "tool_uses", "value": 1}},
    )
    assert (first["type"], second["type"]) == (THINKING, TOOL_USES)
