"""Calls as a model would have written them: for templates that write none."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from caudal.chat.calls.formats import CallSyntax, ToolFormat
from caudal.chat.conversation import ToolCall
from caudal.chat.member_grammar import MemberSyntax


def write_calls(tool_format: ToolFormat, calls: Sequence[ToolCall]) -> str:
    """Calls in a format, as its grammar would have them.

    No marker of the format stands within what the calls hold.
    """
    syntax, markers = tool_format.syntax, tool_format.markers
    written = [_call(syntax, call, place, markers) for place, call in enumerate(calls)]
    if syntax.separator is None:
        return "".join(f"{syntax.begin}{call}{syntax.end}" for call in written)
    return syntax.begin + syntax.separator.join(written) + syntax.end


def _call(syntax: CallSyntax, call: ToolCall, place: int, markers: Collection[str]) -> str:
    head = syntax.head.replace("NUMBER", str(place)).replace("NAME", call.name)
    return head + _arguments(syntax, call, markers) + syntax.tail


def _arguments(syntax: CallSyntax, call: ToolCall, markers: Collection[str]) -> str:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return _without(markers, call.arguments)  # what the model wrote, though it isn't JSON
    if syntax.members is None or not isinstance(arguments, dict):
        return _json(arguments, markers)
    members = (_member(syntax.members, key, value, markers) for key, value in arguments.items())
    return syntax.members.separator.join(members)


def _member(syntax: MemberSyntax, key: str, value: Any, markers: Collection[str]) -> str:
    text = syntax.text
    if text is not None and isinstance(value, str):
        head = syntax.head if text.head is None else text.head
        end = f"{text.pad}{text.end}{text.tail}"
        written = f"{text.begin}{_without((*markers, text.end), value)}{end}"
        return head.replace("KEY", key) + written
    return syntax.head.replace("KEY", key) + _inner(syntax, value, markers) + syntax.tail


def _inner(syntax: MemberSyntax, value: Any, markers: Collection[str]) -> str:
    """A value as a format has it within others."""
    if not syntax.nested or not isinstance(value, (str, list, dict)):
        return _json(value, markers)
    if isinstance(value, list):
        return f"[{syntax.separator.join(_inner(syntax, item, markers) for item in value)}]"
    if isinstance(value, dict):
        if not all(key.isascii() and key.isidentifier() for key in value):
            return _json(value, markers)
        members = (_member(syntax, key, inner, markers) for key, inner in value.items())
        return f"{{{syntax.separator.join(members)}}}"
    text = syntax.text
    if text is None:
        return _json(value, markers)
    return f"{text.begin}{_without((*markers, text.end), value)}{text.end}"


def _json(value: Any, markers: Collection[str]) -> str:
    """JSON, in whose strings markers are escaped: nowhere else they can be."""
    text = json.dumps(value, ensure_ascii=False)
    for marker in markers:
        text = text.replace(marker, f"\\u{ord(marker[0]):04x}{marker[1:]}")
    return text


def _without(markers: Collection[str], text: str) -> str:
    for marker in markers:
        text = text.replace(marker, "")
    return text
