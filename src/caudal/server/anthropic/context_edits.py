"""`context_management`: what is left out of a prompt that a conversation has.

Edits change nothing but the prompt: the client keeps its messages and sends them whole again. What
an edit clears is counted by preparing the prompt with and without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from caudal.errors import ParameterError
from caudal.server.anthropic.content import (
    Block,
    MessageObject,
    OtherBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from caudal.server.anthropic.settings import ContextEdit, Threshold

CLEAR_THINKING = "clear_thinking_20251015"
CLEAR_TOOL_USES = "clear_tool_uses_20250919"

CLEARED = "[This result was removed from the conversation to make room.]"
"""What stands in the place of a tool's result."""

_TRIGGER = Threshold(type="input_tokens", value=100_000)
_KEPT_TOOL_USES = 3
_KEPT_THINKING_TURNS = 1

Count = Callable[[Sequence[MessageObject]], Awaitable[int]]
"""How many tokens the prompt of these messages has."""


@dataclass(slots=True)
class Edited:
    """Messages after the edits.

    Attributes:
        messages: What the model gets to see.
        applied: The edits that cleared something, as answers list them.
    """

    messages: Sequence[MessageObject]
    applied: list[dict[str, Any]] = field(default_factory=list)


def edits_without_effect(edits: Iterable[ContextEdit]) -> Iterator[str]:
    """The edits that this server doesn't know how to make, such as summaries."""
    for edit in edits:
        if edit.type not in (CLEAR_THINKING, CLEAR_TOOL_USES):
            yield f"context_management.edits[].{edit.type}"


async def apply_edits(
    edits: Sequence[ContextEdit], messages: Sequence[MessageObject], count: Count
) -> Edited:
    """Apply edits, one after the other.

    Args:
        edits: The request's.
        messages: The conversation.
        count: Asked only where an edit depends on a number of tokens, or has cleared something.

    Raises:
        ParameterError: An edit makes no sense, or `count` raises it.
    """
    edited = Edited(messages)
    for index, edit in enumerate(edits):
        where = f"context_management.edits[{index}]"
        if edit.type == CLEAR_THINKING:
            await _clear_thinking(edited, _number_of_turns(where, edit), count)
        elif edit.type == CLEAR_TOOL_USES:
            await _clear_tool_uses(edited, edit, where, count)
    return edited


def _number_of_turns(where: str, edit: ContextEdit) -> int | None:
    """How many turns keep their thinking; None for all."""
    match edit.keep:
        case None:
            return _KEPT_THINKING_TURNS
        case "all" | Threshold(type="all"):
            return None
        case Threshold(type="thinking_turns", value=int(number)) if number > 0:
            return number
        case _:
            raise ParameterError(
                f"{where}.keep",
                f"{where}.keep must be 'all' or {{'type': 'thinking_turns', 'value': N}} with N of "
                "1 or more.",
            )


async def _clear_thinking(edited: Edited, kept: int | None, count: Count) -> None:
    if kept is None:
        return
    turns = _turns(edited.messages)
    thinking = sorted(
        {
            turn
            for turn, message in zip(turns, edited.messages, strict=True)
            if any(map(_is_thinking, message.blocks))
        }
    )
    cleared = set(thinking[:-kept])
    if not cleared:
        return
    messages = [
        _with_blocks(message, [block for block in message.blocks if not _is_thinking(block)])
        if turn in cleared
        else message
        for turn, message in zip(turns, edited.messages, strict=True)
    ]
    edited.applied.append(
        {
            "type": CLEAR_THINKING,
            "cleared_thinking_turns": len(cleared),
            "cleared_input_tokens": await count(edited.messages) - await count(messages),
        }
    )
    edited.messages = messages


def _turns(messages: Sequence[MessageObject]) -> list[int]:
    """The number of each message's turn. Tools' results don't begin one, for the answer goes on."""
    turns: list[int] = []
    turn = 0
    for message in messages:
        if message.role == "user" and any(
            not isinstance(block, ToolResultBlock) for block in message.blocks
        ):
            turn += 1
        turns.append(turn)
    return turns


def _is_thinking(block: Block) -> bool:
    if isinstance(block, OtherBlock):
        return block.type == "redacted_thinking"
    return isinstance(block, ThinkingBlock)


async def _clear_tool_uses(edited: Edited, edit: ContextEdit, where: str, count: Count) -> None:
    trigger = edit.trigger or _TRIGGER
    names = {
        block.id: block.name
        for message in edited.messages
        for block in message.blocks
        if isinstance(block, ToolUseBlock)
    }
    tokens: int | None = None
    if trigger.type == "tool_uses":
        reached = len(names)
    else:
        reached = tokens = await count(edited.messages)
    if reached <= _value(f"{where}.trigger", trigger, "input_tokens", "tool_uses"):
        return
    kept = _KEPT_TOOL_USES
    if edit.keep is not None:
        kept = _value(f"{where}.keep", edit.keep, "tool_uses")
    excluded = set(edit.exclude_tools or ())
    older = list(names)[: len(names) - kept] if kept < len(names) else []
    cleared = {identity for identity in older if names[identity] not in excluded}
    if not cleared:
        return
    inputs = edit.clear_tool_inputs
    emptied = {each for each in cleared if inputs is True or (inputs and names[each] in inputs)}
    messages = [
        _with_blocks(message, [_cleared(block, cleared, emptied) for block in message.blocks])
        for message in edited.messages
    ]
    if tokens is None:
        tokens = await count(edited.messages)
    gained = tokens - await count(messages)
    least = edit.clear_at_least
    if least is not None and gained < _value(f"{where}.clear_at_least", least, "input_tokens"):
        return
    edited.applied.append(
        {
            "type": CLEAR_TOOL_USES,
            "cleared_tool_uses": len(cleared),
            "cleared_input_tokens": gained,
        }
    )
    edited.messages = messages


def _cleared(block: Block, cleared: set[str], emptied: set[str]) -> Block:
    if isinstance(block, ToolResultBlock) and block.tool_use_id in cleared:
        return block.model_copy(update={"content": CLEARED})
    if isinstance(block, ToolUseBlock) and block.id in emptied:
        return block.model_copy(update={"input": {}})
    return block


def _with_blocks(message: MessageObject, blocks: list[Block]) -> MessageObject:
    if isinstance(message.content, str) or message.content is None:
        return message
    return message.model_copy(update={"content": blocks})


def _value(where: str, threshold: Threshold | str, *kinds: str) -> int:
    """The number that a threshold names.

    Raises:
        ParameterError: It is one of something else.
    """
    if isinstance(threshold, Threshold) and threshold.type in kinds and threshold.value is not None:
        return threshold.value
    raise ParameterError(where, f"{where} must be {{'type': '{' or '.join(kinds)}', 'value': N}}.")
