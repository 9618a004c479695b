"""A conversation's messages in the shape that one chat template expects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from caudal.chat.conversation import Conversation, Message
from caudal.chat.tool_prompt import with_tools_as_text as as_text
from caudal.errors import TemplateError
from caudal.formats.chat_template import ChatTemplate

_SHORT_IDS = "length 9"
"""In the complaint of Mistral's templates about ids of any other length."""


def template_messages(
    conversation: Conversation, template: ChatTemplate, *, with_tools_as_text: bool
) -> list[dict[str, Any]]:
    """Messages for `ChatTemplate`.

    Args:
        conversation: The conversation.
        template: What renders them; it decides what names and ids it can take.
        with_tools_as_text: Tools, calls and results become text, for a template without a place
            for them.
    """
    messages = conversation.messages
    sources = "\n".join(template.sources)
    if with_tools_as_text:
        tools = conversation.offered_tools
        messages = as_text(messages, tools, takes_system=not tools or _takes_system(template))
    has_developer = "developer" in sources
    short_ids = _SHORT_IDS in sources
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [
        _object(message, names, has_developer=has_developer, short_ids=short_ids, sources=sources)
        for message in messages
    ]


def _object(
    message: Message,
    names: Mapping[str, str],
    *,
    has_developer: bool,
    short_ids: bool,
    sources: str,
) -> dict[str, Any]:
    role: str = message.role
    if role == "developer" and not has_developer:
        role = "system"
    content: str | Sequence[Mapping[str, str]] | None
    if message.content is None or isinstance(message.content, str):
        content = message.content
    else:
        content = [{"type": "text", "text": text} for text in message.content]
    made: dict[str, Any] = {"role": role, "content": content}
    name = message.name
    if message.tool_call_id is not None:
        made["tool_call_id"] = _call_id(message.tool_call_id, short_ids)
        name = name or names.get(message.tool_call_id)
    if name is not None:
        made["name"] = name
    if message.reasoning is not None:
        made["reasoning_content"] = message.reasoning
        if ".thinking" in sources:  # gpt-oss's name for it
            made["thinking"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": _call_id(call.id, short_ids),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return made


def _call_id(identity: str, short: bool) -> str:
    """An id as the template takes it: Mistral's want nine letters or digits."""
    if not short or (len(identity) == 9 and identity.isalnum()):
        return identity
    return hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:9]


def _takes_system(template: ChatTemplate) -> bool:
    probe = [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]
    try:
        template.encode(probe)
    except TemplateError:
        return False
    return True
