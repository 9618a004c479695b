"""What custom tools take: text, where functions take an object.

A model knows such a tool as a function of one argument. Where the text is free, it is written like
any argument. Where it has a grammar, it is written as it is, from a mark to the answer's end: no
grammar could be followed through the escapes of JSON, nor could any end mark be told from the text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

ARGUMENT = "input"

PARAMETERS = {
    "type": "object",
    "properties": {ARGUMENT: {"type": "string"}},
    "required": [ARGUMENT],
    "additionalProperties": False,
}
"""The schema of the one argument."""

TEXT_BEGIN = f"<{ARGUMENT}>\n"
"""Begins a text that has a grammar; the answer's end ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextInput:
    """What a custom tool takes.

    Attributes:
        grammar: In Lark; None where the text is free.
    """

    grammar: str | None = None


def lark_of_pattern(pattern: str) -> str:
    """A grammar in Lark of the texts that a pattern matches from beginning to end."""
    escaped = []
    is_escaped = False
    for char in pattern:
        escaped.append("\\/" if char == "/" and not is_escaped else char)
        is_escaped = char == "\\" and not is_escaped
    return f"start: /{''.join(escaped)}/\n"


def arguments_of(text: str) -> str:
    """The arguments that hold a text, as JSON: what a model is shown of a call that it made."""
    return json.dumps({ARGUMENT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """The text in what a model wrote as a function's arguments; all of it, where there is none."""
    try:
        value: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(value, dict):
        if ARGUMENT not in value and len(value) == 1:
            (value,) = value.values()
        else:
            value = value.get(ARGUMENT)
    return value if isinstance(value, str) else arguments
