"""How a template writes calls, found out by asking it: for what its text doesn't give away.

Ollama takes the text that a template writes before a call for what the model begins calls with,
whatever that is. A call of the made-up conversation here shows it, where it is JSON.
"""

from __future__ import annotations

import json
from typing import Any

from caudal.chat.calls.formats import TOOL_FORMATS, ToolFormat, json_format
from caudal.chat.calls.json_calls import ARGUMENT_KEYS, NAME_KEYS
from caudal.errors import ParameterError, TemplateError
from caudal.formats.chat_template import ChatTemplate

_NAME, _ARGUMENTS = "a_probe", {"probe": 1}
_TEXT = "\N{SECTION SIGN} of the probe"
"""Begins as no marker of calls does."""

_FENCE = "```"


def written_format(template: ChatTemplate) -> ToolFormat | None:
    """How a template writes a call; None where it writes none, or not as JSON.

    It waits for the template, twice.
    """
    made = {"type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    called = _render(template, {"content": "", "tool_calls": [{"id": "a12345678", **made}]})
    said = _render(template, {"content": _TEXT})
    if called is None or said is None or _TEXT not in said:
        return None
    pairs = enumerate(zip(called, said, strict=False))
    written = called[next(index for index, (a, b) in pairs if a != b) :]
    place = min((found for found in map(written.find, "[{") if found >= 0), default=-1)
    if place < 0:
        return None
    try:
        calls, length = json.JSONDecoder().raw_decode(written[place:])
    except (ValueError, RecursionError):
        return None
    call: Any = calls[0] if isinstance(calls, list) and calls else calls
    if not isinstance(call, dict):
        return None
    names = [key for key in NAME_KEYS if call.get(key) == _NAME]
    arguments = [key for key in ARGUMENT_KEYS if call.get(key) == _ARGUMENTS]
    if not names or not arguments:
        return None
    begin = written[:place].strip()
    for known in TOOL_FORMATS.values():
        if begin in known.begins or (not begin and written[place] in known.bare == "{"):
            return known
    return json_format(
        begin,
        _end_of(begin, written[place + length :]),
        in_list=isinstance(calls, list),
        name=names[0],
        arguments=arguments[0],
    )


def _render(template: ChatTemplate, message: dict[str, Any]) -> str | None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", **message}]
    try:
        return template.render([*messages, {"role": "user", "content": "Go on"}])
    except (TemplateError, ParameterError):
        return None


def _end_of(begin: str, following: str) -> str:
    """What ends a call that such a text begins, where it does stand behind it."""
    following = following.lstrip()
    name = begin[1:-1]
    for end in (f"</{name}>", f"[/{name}]", f"<|/{name.strip('|')}|>", _FENCE):
        if following.startswith(end) and (end != _FENCE or _FENCE in begin):
            return end
    return ""
