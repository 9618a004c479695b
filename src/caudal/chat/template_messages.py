"""A conversation's messages in the shape that one chat template expects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from typing import Any

from caudal.chat.calls.formats import ToolFormat
from caudal.chat.calls.writing import write_calls
from caudal.chat.conversation import Conversation, Message
from caudal.chat.template_habits import TemplateHabits, takes_system
from caudal.chat.tool_prompt import text_of
from caudal.chat.tool_prompt import with_tools_as_text as as_text
from caudal.formats.chat_template import ChatTemplate

_SHORT_IDS = "length 9"
"""In the complaint of Mistral's templates about ids of any other length."""


def template_messages(
    conversation: Conversation,
    template: ChatTemplate,
    habits: TemplateHabits,
    *,
    tool_format: ToolFormat | None,
    with_tools_as_text: bool,
) -> list[dict[str, Any]]:
    """Messages for `ChatTemplate`.

    Args:
        conversation: The conversation.
        template: What renders them; it decides what names and ids it can take.
        habits: What the template does with calls and thoughts.
        tool_format: How the model writes calls, for a template that writes none.
        with_tools_as_text: Tools, calls and results become text, for a template without a place
            for them.
    """
    messages = conversation.messages
    sources = "\n".join(template.sources)
    if with_tools_as_text:
        tools = conversation.offered_tools
        messages = as_text(messages, tools, takes_system=not tools or takes_system(template))
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    made = _MessageMaker(
        habits,
        names,
        tool_format,
        has_developer="developer" in sources,
        short_ids=_SHORT_IDS in sources,
    )
    if habits.text_before_calls:
        messages = _text_before_calls(messages)
    if not habits.several_calls:
        messages = _one_call_each(messages)
    objects = [made.object_of(message) for message in messages]
    if habits.text_before_calls:
        for before, following in pairwise(objects):
            if before["role"] == "assistant" and "tool_calls" in following:
                before["end_turn"] = False
    return _with_results(messages, objects) if habits.results_beside_calls else objects


def _text_before_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages, with one of its own for text that comes with calls, before these."""
    apart: list[Message] = []
    for message in messages:
        if message.tool_calls and text_of(message):
            apart.append(replace(message, tool_calls=()))
            message = replace(message, content=None, reasoning=None)
        apart.append(message)
    return apart


def _one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The messages, with one of its own for each call, and its result behind it."""
    apart: list[Message] = []
    messages = list(messages)
    while messages:
        message = messages.pop(0)
        if len(message.tool_calls) < 2:
            apart.append(message)
            continue
        count = next((i for i, m in enumerate(messages) if m.role != "tool"), len(messages))
        results, messages = messages[:count], messages[count:]
        for place, call in enumerate(message.tool_calls):
            if place == 0:
                apart.append(replace(message, tool_calls=[call]))
            else:
                apart.append(Message(role="assistant", tool_calls=[call]))
            apart += [result for result in results if result.tool_call_id == call.id]
        identities = {call.id for call in message.tool_calls}
        apart += [result for result in results if result.tool_call_id not in identities]
    return apart


def _with_results(
    messages: Sequence[Message], objects: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The messages' objects, with results as `tool_responses` of the one that called."""
    joined: list[dict[str, Any]] = []
    for message, made in zip(messages, objects, strict=True):
        if message.role == "tool" and joined and "tool_calls" in joined[-1]:
            response = {"name": made.get("name", ""), "response": text_of(message)}
            joined[-1].setdefault("tool_responses", []).append(response)
        else:
            joined.append(made)
    return joined


@dataclass(frozen=True, slots=True)
class _MessageMaker:
    """Makes messages for one template.

    Attributes:
        habits: What it does with calls and thoughts.
        names: The tools of calls, by the calls' ids.
        tool_format: How the model writes calls.
        has_developer: Whether it knows the role `developer`.
        short_ids: Whether it wants ids as Mistral's templates do.
    """

    habits: TemplateHabits
    names: Mapping[str, str]
    tool_format: ToolFormat | None
    _: KW_ONLY
    has_developer: bool
    short_ids: bool

    def object_of(self, message: Message) -> dict[str, Any]:
        """A message as the template takes it."""
        role: str = message.role
        if role == "developer" and not self.has_developer:
            role = "system"
        made: dict[str, Any] = {"role": role, "content": self._content(message)}
        name = message.name
        if message.tool_call_id is not None:
            made["tool_call_id"] = self._call_id(message.tool_call_id)
            name = name or self.names.get(message.tool_call_id)
        if name is not None:
            made["name"] = name
        reasoning = self._reasoning(message)
        if reasoning is not None and self.habits.thinking_parts:
            thought = {"type": "thinking", "thinking": reasoning}
            content = made["content"]
            made["content"] = [
                thought,
                *(content if isinstance(content, list) else _parts(filter(None, [content]))),
            ]
        elif reasoning is not None:
            made |= dict.fromkeys(("reasoning_content", *self.habits.thought_keys), reasoning)
        if message.tool_calls and not self._calls_are_text(message):
            made["tool_calls"] = [
                {
                    "id": self._call_id(call.id),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
        return made

    def _content(self, message: Message) -> str | list[dict[str, str]] | None:
        if self._text_is_thought(message):
            return ""
        if self._calls_are_text(message):
            assert self.tool_format is not None
            return text_of(message) + write_calls(self.tool_format, message.tool_calls)
        content = message.content
        return content if content is None or isinstance(content, str) else _parts(content)

    def _reasoning(self, message: Message) -> str | None:
        if not self._text_is_thought(message):
            return message.reasoning
        return "\n\n".join(filter(None, (message.reasoning, text_of(message))))

    def _calls_are_text(self, message: Message) -> bool:
        habits = self.habits
        takes = habits.writes_calls and (habits.calls_beside_text or not text_of(message))
        return bool(message.tool_calls) and not takes and self.tool_format is not None

    def _text_is_thought(self, message: Message) -> bool:
        """Whether a message's text goes with its thoughts, the only ones that may precede calls."""
        habits = self.habits
        return (
            bool(message.tool_calls)
            and habits.calls_beside_text
            and not habits.text_beside_calls
            and habits.thought_before_calls
        )

    def _call_id(self, identity: str) -> str:
        """An id as the template takes it: Mistral's want nine letters or digits."""
        if not self.short_ids or (len(identity) == 9 and identity.isalnum()):
            return identity
        return hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:9]


def _parts(texts: Iterable[str]) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]
