"""From Anthropic's messages to the shape that all APIs share.

Anthropic puts an answer's text, thinking and calls into one message, and calls' results into the
user's next one; several messages of one role in a row are one turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from caudal.chat.conversation import Message, ToolCall
from caudal.errors import ParameterError
from caudal.server.anthropic.content import (
    MessageObject,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)


def read_messages(messages: Sequence[MessageObject]) -> list[Message]:
    """The conversation's messages.

    Raises:
        ParameterError: A call has no result, or a result no call; names the message.
    """
    read: list[Message] = []
    open_calls: dict[str, str] = {}  # names by id, of the turn before
    for role, group in groupby(enumerate(messages), key=lambda item: item[1].role):
        turn = list(group)
        where = f"messages[{turn[0][0]}]"
        blocks = [block for _, message in turn for block in message.blocks]
        if role == "user":
            read += _user_messages(where, blocks, open_calls)
            open_calls = {}
            continue
        if open_calls:
            raise _missing_results(where, open_calls)
        if role == "system":
            texts = [block.text for block in blocks if isinstance(block, TextBlock)]
            read.append(Message(role="system", content=_joined(texts)))
        else:
            message = _assistant_message(blocks)
            open_calls = {call.id: call.name for call in message.tool_calls}
            if len(open_calls) < len(message.tool_calls):
                raise ParameterError("messages", f"{where}: two tool_use blocks have the same id.")
            read.append(message)
    if open_calls:
        raise _missing_results("messages", open_calls)
    return read


def _assistant_message(blocks: Sequence[object]) -> Message:
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [
        ToolCall(
            id=block.id, name=block.name, arguments=json.dumps(block.input, ensure_ascii=False)
        )
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return Message(
        role="assistant",
        # Blocks are pieces of one text, which a prefilled answer goes on with as it stands.
        content="".join(texts) if texts or not calls else None,
        reasoning="\n\n".join(thoughts) if any(thoughts) else None,
        tool_calls=calls,
    )


def _user_messages(
    where: str, blocks: Sequence[object], open_calls: dict[str, str]
) -> Iterator[Message]:
    texts: list[str] = []
    unanswered = dict(open_calls)
    for block in blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolResultBlock):
            if texts and unanswered:
                raise ParameterError(
                    "messages", f"{where}: tool_result blocks must come before text."
                )
            name = unanswered.pop(block.tool_use_id, None)
            if name is None:
                raise ParameterError(
                    "messages",
                    f"{where}: a tool_result's tool_use_id is {block.tool_use_id!r:.80}, but the "
                    "message before has no such tool_use block, or its result is there already.",
                )
            yield Message(
                role="tool", content=block.text, name=name, tool_call_id=block.tool_use_id
            )
    if unanswered:
        raise _missing_results(where, unanswered)
    if texts or not open_calls:
        yield Message(role="user", content=_joined(texts))


def _joined(texts: Sequence[str]) -> str | Sequence[str]:
    return texts[0] if len(texts) == 1 else texts


def _missing_results(where: str, calls: dict[str, str]) -> ParameterError:
    ids = ", ".join(f"{identity!r:.80}" for identity in calls)
    return ParameterError(
        "messages",
        f"{where}: every tool_use block needs a tool_result block in the message after it; "
        f"there is none for {ids}.",
    )
