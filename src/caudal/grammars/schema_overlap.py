"""Whether two schemas may both match a value: what tells `oneOf` from `anyOf`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
_MAX_DEPTH = 12

Resolve = Callable[[Any], Any]
"""Finds what a reference points to."""


def may_overlap(first: Any, second: Any, resolve: Resolve, within: Any = None) -> bool:
    """Whether a value may match both schemas; true where that is hard to tell.

    Args:
        first: A schema.
        second: Another.
        resolve: Finds what references point to.
        within: The `type` that values have in any case, as schemas say it.
    """
    return not _disjoint(first, second, resolve, _types(within), 0)


def _disjoint(
    first: Any, second: Any, resolve: Resolve, within: frozenset[str], depth: int
) -> bool:
    if first is False or second is False:
        return True
    if not isinstance(first, dict) or not isinstance(second, dict) or depth > _MAX_DEPTH:
        return False
    if _types(first.get("type")).isdisjoint(_types(second.get("type")) & within):
        return True
    one, other = _values(first), _values(second)
    if one is not None and other is not None:
        return one.isdisjoint(other)
    for values, schema in ((one, second), (other, first)):
        if values is not None and _types(schema.get("type")).isdisjoint(map(_type_of, values)):
            return True
    both = _types(first.get("type")) & _types(second.get("type")) & within
    if both == {"object"} and _objects_disjoint(first, second, resolve, depth):
        return True
    for schema, against in ((first, second), (second, first)):
        for name in ("anyOf", "oneOf"):
            branches = schema.get(name)
            if isinstance(branches, list) and all(
                _disjoint(branch, against, resolve, within, depth + 1) for branch in branches
            ):
                return True
        parts = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
        if "$ref" in schema:
            parts.append(resolve(schema["$ref"]))
        if any(_disjoint(part, against, resolve, within, depth + 1) for part in parts):
            return True
    return False


def _objects_disjoint(
    first: dict[str, Any], second: dict[str, Any], resolve: Resolve, depth: int
) -> bool:
    """Whether some property that an object must have can't be as both schemas want it."""
    required = {*_required(first), *_required(second)}
    return any(
        _disjoint(_property(first, name), _property(second, name), resolve, _TYPES, depth + 1)
        for name in required
    )


def _property(schema: dict[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    if schema.get("patternProperties"):
        return True
    return schema.get("additionalProperties", True)


def _required(schema: dict[str, Any]) -> list[str]:
    required = schema.get("required")
    return [str(name) for name in required] if isinstance(required, list) else []


def _types(said: Any) -> frozenset[str]:
    names = [said] if isinstance(said, str) else said
    if not isinstance(names, list):
        return _TYPES
    # An integer is a number too.
    return frozenset("number" if name == "integer" else str(name) for name in names)


def _values(schema: dict[str, Any]) -> frozenset[str] | None:
    """The values that a schema lists, as JSON; None where it lists none."""
    if "const" in schema:
        return frozenset((_written(schema["const"]),))
    if isinstance(schema.get("enum"), list):
        return frozenset(map(_written, schema["enum"]))
    return None


def _written(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _type_of(written: str) -> str:
    match written[0]:
        case '"':
            return "string"
        case "{":
            return "object"
        case "[":
            return "array"
        case "n":
            return "null"
        case "t" | "f":
            return "boolean"
        case _:
            return "number"
