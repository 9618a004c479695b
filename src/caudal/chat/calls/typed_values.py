"""Arguments whose text doesn't say what they are: their schemas do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caudal.chat.calls.json_calls import parse_json
from caudal.chat.calls.python_calls import parse_literal
from caudal.chat.calls.reading import BrokenCallError

_MAX_DEPTH = 8


def value_of(text: str, schema: Any) -> Any:
    """An argument's value: text, unless its schema says that it is something else.

    Where it may be several things, it is the JSON value that the text is, if it may be that. Some
    models write Python's literals in place of JSON.
    """
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    types = types_of(schema)
    try:
        value = parse_json(text.strip())
    except BrokenCallError:
        if types is None or "string" in types:
            return text
        try:
            return parse_literal(text.strip())
        except BrokenCallError:
            return text
    if types is not None and "string" in types and not _types_of_value(value) & types:
        return text
    return value


def types_of(schema: Any, depth: int = 0) -> frozenset[str] | None:
    """The JSON types that a schema allows; None where it doesn't say."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    match schema:
        case {"type": str() as name}:
            return frozenset((name,))
        case {"type": list() as names}:
            return frozenset(name for name in names if isinstance(name, str))
        case {"const": value}:
            return _types_of_value(value)
        case {"enum": list() as values} if values:
            return frozenset().union(*map(_types_of_value, values))
        case {"allOf": list() as parts}:
            known = (types_of(part, depth + 1) for part in parts)
            return next((types for types in known if types is not None), None)
        case {"anyOf": list() as parts} | {"oneOf": list() as parts} if parts:
            found = [types_of(part, depth + 1) for part in parts]
            if None in found:
                return None
            return frozenset().union(*(types for types in found if types is not None))
        case _:
            return None


def _types_of_value(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset(("null",))
        case bool():
            return frozenset(("boolean",))
        case int():
            return frozenset(("integer", "number"))
        case float():
            whole = value.is_integer()
            return frozenset(("integer", "number")) if whole else frozenset(("number",))
        case str():
            return frozenset(("string",))
        case list():
            return frozenset(("array",))
        case _:
            return frozenset(("object",))
