"""Checks a request's chat messages and brings them into the shape that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from caudal.errors import ParameterError


def normalize_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    takes_parts: bool,
    takes_text: bool,
    arguments_as_text: bool = False,
) -> list[dict[str, Any]]:
    """Copies of the messages whose content and tool calls are as templates expect them.

    Content that is a list of parts is joined to one text, with line breaks, where the template
    takes no parts; a text becomes a list of one part where it takes nothing else. Content that is
    null becomes the empty text. Arguments of tool calls, a string of JSON in OpenAI's API, become
    the object they stand for, unless the template joins them to other texts.

    Args:
        messages: OpenAI-like messages: a `role`, a `content` and whatever else the template reads.
        takes_parts: Whether the template takes content as a list of parts.
        takes_text: Whether it takes content as a text.
        arguments_as_text: Whether it takes a call's arguments as JSON text only.

    Raises:
        ParameterError: A message is malformed, or has a part that isn't text; names it.
    """
    if not messages:
        raise ParameterError("messages", "messages must not be empty.")
    normalized = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise ParameterError("messages", f"{where} must be an object.")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise ParameterError("messages", f"{where}.role must be a non-empty string.")
        copy = dict(message)
        copy["content"] = _normalize_content(message, where, takes_parts, takes_text)
        if message.get("tool_calls"):
            copy["tool_calls"] = _normalize_tool_calls(
                message["tool_calls"], where, arguments_as_text
            )
        normalized.append(copy)
    return normalized


def _normalize_content(
    message: Mapping[str, Any], where: str, takes_parts: bool, takes_text: bool
) -> str | list[dict[str, Any]]:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant":
            raise ParameterError("messages", f"{where}.content is missing.")
        content = ""
    if isinstance(content, str):
        return content if takes_text else [{"type": "text", "text": content}]
    if not isinstance(content, Sequence):
        raise ParameterError(
            "messages", f"{where}.content must be a string or a list of parts, not {content!r:.40}."
        )
    takes_thoughts = takes_parts and message["role"] == "assistant"
    parts = [
        _part_of(part, f"{where}.content[{i}]", takes_thoughts) for i, part in enumerate(content)
    ]
    return parts if takes_parts else "\n".join(part["text"] for part in parts)


def _part_of(part: Any, where: str, takes_thoughts: bool) -> dict[str, Any]:
    """A part of text, or of an assistant's thoughts, as Mistral's templates know them."""
    if takes_thoughts and isinstance(part, Mapping) and part.get("type") == "thinking":
        if not isinstance(part.get("thinking"), str):
            raise ParameterError("messages", f"{where}.thinking must be a string.")
        return {"type": "thinking", "thinking": part["thinking"]}
    return {"type": "text", "text": _text_of(part, where)}


def _text_of(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise ParameterError("messages", f"{where} must be an object.")
    kind = part.get("type")
    # OpenAI's API gives an assistant's refusal back as a part of its own.
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind not in ("text", "refusal"):
        raise ParameterError(
            "messages", f"{where} has type {kind!r}, but this model reads text only."
        )
    if not isinstance(text, str):
        raise ParameterError("messages", f"{where}.{kind} must be a string.")
    return text


def _normalize_tool_calls(calls: Any, where: str, as_text: bool) -> list[Any]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise ParameterError("messages", f"{where}.tool_calls must be a list.")
    normalized = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise ParameterError(
                "messages", f"{where}.tool_calls[{index}].function must be an object."
            )
        arguments = _parse_arguments(function.get("arguments"))
        if as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        normalized.append({**call, "function": {**function, "arguments": arguments}})
    return normalized


def _parse_arguments(arguments: Any) -> Any:
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments  # what the model wrote, though it isn't JSON
    return parsed if isinstance(parsed, dict) else arguments
