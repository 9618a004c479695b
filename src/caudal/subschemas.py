"""The schemas within a JSON schema: where they are, and how all of them are closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SINGLE = (
    "items", "additionalItems", "additionalProperties", "propertyNames", "not", "contains", "if",
    "then", "else", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
"""Keywords whose value is a schema."""

LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
"""Keywords whose value is a list of schemas."""

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value has schemas by name."""


def closed(schema: Any) -> Any:
    """A schema whose objects, where it lists their properties, have no others.

    Objects of which it says whether they have are left, and so are parts of an `allOf`: what one
    part doesn't list, another may.
    """
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for name in SINGLE:
        if isinstance(result.get(name), dict):
            result[name] = closed(result[name])
    for name in LISTS:
        if name != "allOf" and isinstance(result.get(name), list):
            result[name] = [closed(item) for item in result[name]]
    for name in MAPS:
        if isinstance(result.get(name), dict):
            result[name] = {key: closed(item) for key, item in result[name].items()}
    if "allOf" not in result and ("properties" in result or "patternProperties" in result):
        result.setdefault("additionalProperties", False)
    return result


def children(schema: dict[str, Any]) -> Iterator[tuple[Any, Any, str]]:
    """Where the subschemas of a schema are: a container, a key of it, and words for people."""
    for name in SINGLE:
        if isinstance(schema.get(name), dict):
            yield schema, name, name
    for name in LISTS:
        if isinstance(schema.get(name), list):
            for place in range(len(schema[name])):
                yield schema[name], place, f"{name}[{place}]"
    for name in MAPS:
        if isinstance(schema.get(name), dict):
            for key in schema[name]:
                yield schema[name], key, f"{name}.{key}"
