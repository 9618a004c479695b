"""From Anthropic's messages to the shape that all APIs share.

Anthropic puts an answer's text, thinking and calls into one message, and calls' results into the
user's next one; several messages of one role in a row are one turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NoReturn

from caudal.chat.conversation import Message, ToolCall
from caudal.errors import ParameterError
from caudal.server.anthropic.content import (
    Block,
    DocumentBlock,
    MessageObject,
    OtherBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolChangeBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from caudal.server.anthropic.tools import ToolObject

_SEARCH_RESULT = "tool_search_tool_result"


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block, and where it stands: `messages.0.content.1`, as Anthropic counts."""

    message: int
    index: int
    block: Block

    @property
    def place(self) -> str:
        """For people who look it up in their request."""
        return f"messages[{self.message}].content[{self.index}]"


@dataclass(slots=True)
class ToolChanges:
    """What a conversation does to the tools that are on offer.

    Attributes:
        loaded: Names of deferred tools that the model may see by now.
        removed: Names that were taken away, and not given back.
        added: Tools that the conversation defines.
    """

    loaded: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    added: dict[str, ToolObject] = field(default_factory=dict)

    def load(self, name: str) -> None:
        """Offer a tool."""
        self.loaded.add(name)
        self.removed.discard(name)


def read_tool_changes(messages: Sequence[MessageObject]) -> ToolChanges:
    """What the blocks of a conversation do to the tools, in their order."""
    changes = ToolChanges()
    for message in messages:
        for block in message.blocks:
            match block:
                case ToolResultBlock():
                    for part in block.parts:
                        if isinstance(part, ToolReferenceBlock):
                            changes.load(part.tool_name)
                case ToolChangeBlock(type="tool_removal"):
                    if block.tool.name is not None:
                        changes.removed.add(block.tool.name)
                case ToolChangeBlock():
                    defined = block.tool.definition
                    name = block.tool.name if defined is None else defined.name
                    if name is not None:
                        changes.load(name)
                        if defined is not None:
                            changes.added[name] = defined
                case OtherBlock(type=kind) if kind == _SEARCH_RESULT:
                    for name in _found_by_search(block):
                        changes.load(name)
    return changes


def _found_by_search(block: OtherBlock) -> Iterator[str]:
    """The tools that a search of Anthropic's servers has found, earlier."""
    references = block.content.get("tool_references") if isinstance(block.content, dict) else None
    for reference in references if isinstance(references, list) else ():
        name = reference.get("tool_name") if isinstance(reference, dict) else None
        if isinstance(name, str):
            yield name


def answers_tools(messages: Sequence[MessageObject]) -> bool:
    """Whether the answer will be one to tools' results."""
    for message in reversed(messages):
        if message.role == "user":
            return any(isinstance(block, ToolResultBlock) for block in message.blocks)
    return False


def read_messages(messages: Sequence[MessageObject]) -> list[Message]:
    """The conversation's messages.

    Raises:
        ParameterError: A call has no result, or a result no call, or a block can't stand where it
            does; names the message.
    """
    last_user = max((i for i, each in enumerate(messages) if each.role == "user"), default=-1)
    read: list[Message] = []
    open_calls: dict[str, str] = {}  # names by id, of the turn before
    before = 0  # the message with these calls
    for role, group in groupby(enumerate(messages), key=lambda item: item[1].role):
        turn = list(group)
        blocks = [
            PlacedBlock(number, index, block)
            for number, message in turn
            if message.clear_at != "next_user_message" or number > last_user
            for index, block in enumerate(message.blocks)
        ]
        missing = [number for number, message in turn if message.content is None]
        if missing and role != "system":
            field = f"messages[{missing[0]}].content"
            raise ParameterError(field, f"{field} is required.")
        if role == "user":
            read += _user_messages(blocks, before, open_calls)
            open_calls = {}
            continue
        if open_calls:
            _refuse_open_calls(before, open_calls)
        if role == "system":
            texts = list(_system_texts(blocks))
            if texts:
                read.append(Message(role="system", content=_joined(texts)))
            continue
        before = turn[-1][0]
        message = _assistant_message(blocks)
        open_calls = {call.id: call.name for call in message.tool_calls}
        if len(open_calls) < len(message.tool_calls):
            raise ParameterError("messages", f"messages.{before}: `tool_use` ids must be unique.")
        read.append(message)
    if open_calls:
        _refuse_open_calls(before, open_calls)
    if not read:
        raise ParameterError("messages", "messages: there is no content that this model can read.")
    return read


def _assistant_message(blocks: Sequence[PlacedBlock]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for placed in blocks:
        match placed.block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case ToolUseBlock(id=identity, name=name, input=arguments):
                text = json.dumps(arguments, ensure_ascii=False)
                calls.append(ToolCall(id=identity, name=name, arguments=text))
            case OtherBlock(type="compaction", content=str(summary)):
                texts.append(summary)
            case OtherBlock(type=kind) if kind != "image":
                pass  # made by Anthropic's servers: redacted thinking, a search, a fallback
            case _:
                _refuse(placed, "assistant")
    return Message(
        role="assistant",
        # Blocks are pieces of one text, which a prefilled answer goes on with as it stands.
        content="".join(texts) if texts or not calls else None,
        reasoning="\n\n".join(thoughts) if any(thoughts) else None,
        tool_calls=calls,
    )


def _user_messages(
    blocks: Sequence[PlacedBlock], before: int, open_calls: dict[str, str]
) -> Iterator[Message]:
    texts: list[str] = []
    unanswered = dict(open_calls)
    for placed in blocks:
        match placed.block:
            case (
                TextBlock(text=text) | SearchResultBlock(text=text) | DocumentBlock(text=str(text))
            ):
                texts.append(text)
            case ToolResultBlock() as result:
                if texts and unanswered:
                    _refuse_open_calls(before, unanswered, come_late=True)
                yield _result_message(placed, result, open_calls, unanswered)
            case _:
                _refuse(placed, "user")
    if unanswered:
        _refuse_open_calls(before, unanswered)
    if texts or not open_calls:
        yield Message(role="user", content=_joined(texts))


def _result_message(
    placed: PlacedBlock,
    result: ToolResultBlock,
    open_calls: dict[str, str],
    unanswered: dict[str, str],
) -> Message:
    identity = result.tool_use_id
    name = unanswered.pop(identity, None)
    if name is None:
        where = f"messages.{placed.message}.content.{placed.index}"
        if identity in open_calls:
            raise ParameterError(
                "messages",
                f"{where}: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {identity:.80}",
            )
        raise ParameterError(
            "messages",
            f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {identity:.80}. "
            "Each `tool_result` block must have a corresponding `tool_use` block in the previous "
            "message.",
        )
    return Message(role="tool", content=result.text, name=name, tool_call_id=identity)


def _system_texts(blocks: Sequence[PlacedBlock]) -> Iterator[str]:
    for placed in blocks:
        match placed.block:
            case TextBlock(text=text):
                yield text
            case ToolChangeBlock():
                pass  # see `read_tool_changes`
            case _:
                _refuse(placed, "system")


def _joined(texts: Sequence[str]) -> str | Sequence[str]:
    return "".join(texts) if len(texts) < 2 else texts


def _refuse(placed: PlacedBlock, role: str) -> NoReturn:
    kind = placed.block.type
    if kind in ("image", "document", "container_upload"):
        what = {"image": "an image", "document": "a document that isn't text"}.get(kind, "a file")
        raise ParameterError(
            placed.place, f"{placed.place}: {what}, but this model reads text only."
        )
    if isinstance(placed.block, OtherBlock):
        raise ParameterError(
            placed.place,
            f"{placed.place}: a content block of type {kind!r:.80} is not supported by this server "
            f"in a message of role {role}.",
        )
    raise ParameterError(
        placed.place, f"{placed.place}: a message of role {role} can't have {kind} blocks."
    )


def _refuse_open_calls(message: int, calls: dict[str, str], *, come_late: bool = False) -> NoReturn:
    """In Anthropic's words, which clients look for."""
    ids = ", ".join(f"{identity:.80}" for identity in calls)
    order = " `tool_result` blocks must come before text." if come_late else ""
    raise ParameterError(
        "messages",
        f"messages.{message}: `tool_use` ids were found without `tool_result` blocks immediately "
        f"after: {ids}. Each `tool_use` block must have a corresponding `tool_result` block in the "
        f"next message.{order}",
    )


def without_late_system_messages(messages: Sequence[Message]) -> list[Message] | None:
    """Messages in which the user says what system messages among them say.

    For chat templates that take a system message at the beginning only. Returns None where there
    is none later on.
    """
    first = next((i for i, each in enumerate(messages) if each.role != "system"), len(messages))
    if all(message.role != "system" for message in messages[first:]):
        return None
    folded = list(messages[:first])
    for message in messages[first:]:
        role = "user" if message.role == "system" else message.role
        if role == "user" and folded and folded[-1].role == "user":
            parts = [*_parts(folded[-1]), *_parts(message)]
            folded[-1] = replace(folded[-1], content=parts)
        else:
            folded.append(replace(message, role=role))
    return folded


def _parts(message: Message) -> Sequence[str]:
    content = message.content or ""
    return [content] if isinstance(content, str) else content
