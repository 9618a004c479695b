"""An agent's load: a long beginning of rules and tools, and a history of calls and results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any

from caudal.bench.serving.conversation import Conversation, Turn
from caudal.bench.serving.settings import LoadSettings, Wording
from caudal.bench.serving.streams import ToolCall
from caudal.bench.serving.words import text

_TOOL_WORDS = 60
"""Words that describe a function, besides its parameters."""

_VERBS = ("read", "write", "list", "search", "run", "edit", "move", "fetch", "check", "plan")

_THINGS = ("file", "folder", "text", "test", "branch", "page", "task", "image", "table", "note")


def conversations(settings: LoadSettings, random: Random) -> Iterator[Conversation]:
    """Agents at work: a task, then calls of tools with what the tools said, turn by turn.

    What the model says stays in the history, and where it calls a function itself that call does;
    where it doesn't, as models that aren't good at it, a call is put into its mouth, so that the
    history grows as an agent's does with any model.
    """
    outputs, wording = settings.output_lengths, settings.wording or Wording()
    assert outputs is not None
    beginnings = [_beginning(settings, random, wording) for _ in range(max(1, settings.prefixes))]
    for number in count():
        system, tools = beginnings[number % len(beginnings)]
        history = settings.prefix_tokens
        turns = []
        for place in range(settings.turns):
            tokens = settings.prompt_lengths.draw(random)
            words = text(random, wording.words(tokens, framed=False))
            calls, messages = _result(random, tools, number, place, words)
            if place == 0:
                calls = []
                messages = [
                    {"role": "system", "content": system},
                    {"role": "user", "content": words},
                ]
            history += tokens
            turn = Turn(
                messages=messages,
                calls=calls,
                max_tokens=outputs.draw(random),
                exact_length=bool(settings.ignore_eos),
                think=settings.think if place else 0.0,
                fields={"tools": tools} if tools else {},
                prompt_tokens=history,
            )
            history += turn.max_tokens
            turns.append(turn)
        yield Conversation(turns)


def _beginning(
    settings: LoadSettings, random: Random, wording: Wording
) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """A system prompt and tools that have so many tokens together as a prefix is to have."""
    tools = [_tool(random, number) for number in range(settings.tools)]
    # Words are about four letters and a space; JSON has a token for less.
    tool_tokens = sum(len(json.dumps(tool)) for tool in tools) / 4
    rest = max(1, settings.prefix_tokens - round(tool_tokens))
    return text(random, wording.words(rest, framed=False)), tools


def _tool(random: Random, number: int) -> Mapping[str, Any]:
    name = f"{_VERBS[number % 10]}_{_THINGS[number // 10 % 10]}"
    if number >= 100:
        name += f"_{number}"
    parameters = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": text(random, 8)},
            "what": {"type": "string", "description": text(random, 8)},
        },
        "required": ["path"],
        "additionalProperties": False,
    }
    described = {"name": name, "description": text(random, _TOOL_WORDS), "parameters": parameters}
    return {"type": "function", "function": described}


def _result(
    random: Random, tools: Sequence[Mapping[str, Any]], number: int, place: int, words: str
) -> tuple[list[ToolCall], list[Mapping[str, Any]]]:
    """A call, and the message that says what came of it; without tools the user says it."""
    if not tools:
        return [], [{"role": "user", "content": words}]
    name = random.choice(tools)["function"]["name"]
    arguments = json.dumps({"path": text(random, 3).replace(" ", "/")})
    call = ToolCall(f"call_{number}_{place}", name, arguments)
    return [call], [{"role": "tool", "tool_call_id": call.id, "content": words}]
