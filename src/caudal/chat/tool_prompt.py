"""Tools for models whose chat template has no place for them: told in the system message.

The format is Hermes's, which many models know and others pick up: calls are JSON in `<tool_call>`
tags, and results come back from the user in `<tool_response>` tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from caudal.chat.conversation import Message, Tool

_INSTRUCTIONS = """\
You can call functions to help the user. These are their signatures, one JSON object a line:
<tools>
{tools}
</tools>

To call a function, write its name and arguments as a JSON object within <tool_call> tags:
<tool_call>
{{"name": "FUNCTION", "arguments": {{"PARAMETER": "VALUE"}}}}
</tool_call>
Call a function only if it helps. Its result comes back within <tool_response> tags."""


def tool_object(tool: Tool) -> dict[str, Any]:
    """A tool in the shape of OpenAI's API, which templates expect."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = dict(tool.parameters)
    return {"type": "function", "function": function}


def with_tools_as_text(
    messages: Sequence[Message], tools: Sequence[Tool], *, takes_system: bool
) -> list[Message]:
    """The conversation, with tools, calls and results as text of its messages.

    Args:
        messages: The conversation.
        tools: The tools on offer.
        takes_system: Whether the template takes a system message; if not, the first user's message
            begins with what it would say.
    """
    told: list[Message] = []
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{text_of(message)}\n</tool_response>"
            _append(told, Message(role="user", content=text), joins=_is_results)
        elif message.tool_calls:
            calls = [_call_text(call.name, call.arguments) for call in message.tool_calls]
            text = "\n".join([*filter(None, [text_of(message)]), *calls])
            told.append(Message(role="assistant", content=text, reasoning=message.reasoning))
        elif message.role == "user":
            _append(told, message, joins=_is_results)
        else:
            told.append(message)
    return _instruct(told, tools, takes_system) if tools else told


def with_tools_in_system(
    messages: Sequence[dict[str, Any]], tools: Sequence[Tool]
) -> list[dict[str, Any]]:
    """Messages for a template that takes tools from the system's, which is there then, as text."""
    told = json.dumps([_signature(tool) for tool in tools], ensure_ascii=False)
    first, *others = messages
    if first["role"] != "system":
        first, others = {"role": "system", "content": ""}, list(messages)
    return [{**first, "tools": told}, *others]


def text_of(message: Message) -> str:
    """A message's text; its parts are joined with line breaks."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "\n".join(message.content)


def _is_results(message: Message) -> bool:
    return message.role == "user" and text_of(message).startswith("<tool_response>")


def _append(told: list[Message], message: Message, *, joins: Any) -> None:
    """Append a user's message; to results, which the user sends too, it is joined."""
    if told and joins(told[-1]):
        before = told.pop()
        text = f"{text_of(before)}\n{text_of(message)}"
        message = Message(role="user", content=text, name=message.name)
    told.append(message)


def _call_text(name: str, arguments: str) -> str:
    try:
        value: Any = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = arguments
    call = json.dumps({"name": name, "arguments": value}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _instruct(messages: list[Message], tools: Sequence[Tool], takes_system: bool) -> list[Message]:
    lines = [json.dumps(_signature(tool), ensure_ascii=False) for tool in tools]
    instructions = _INSTRUCTIONS.format(tools="\n".join(lines))
    first = messages[0]
    if first.role in ("system", "developer"):
        text = f"{text_of(first)}\n\n{instructions}"
        return [Message(role=first.role, content=text, name=first.name), *messages[1:]]
    if takes_system or first.role != "user":
        return [Message(role="system", content=instructions), *messages]
    text = f"{instructions}\n\n{text_of(first)}"
    return [Message(role="user", content=text, name=first.name), *messages[1:]]


def _signature(tool: Tool) -> Mapping[str, Any]:
    signature: Mapping[str, Any] = tool_object(tool)["function"]
    return signature
