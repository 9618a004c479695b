"""Validation that gives up early.

Pydantic looks at every element of a list and reports each that is wrong. Of a million wrong ones
only the first is of use; the others cost seconds and gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticCustomError, SchemaValidator, core_schema

MAX_ENTRIES = 4096
"""Of an object whose values are all of one kind: pydantic looks at all of them."""

MAX_OBJECTS = 2**14
"""Of a list of objects, such as messages, parts or tools."""

_SCALARS = frozenset(("int", "float", "str", "bool", "none", "literal"))


def bounded_validator(kind: Any) -> SchemaValidator:
    """A validator for a type that stops at the first wrong element of a list, and at too many.

    Args:
        kind: What `pydantic.TypeAdapter` takes.
    """
    schema: Any = _bounded(TypeAdapter(kind).core_schema)
    # Models would bring validators of their own, made before the bounds.
    return SchemaValidator(schema, _use_prebuilt=False)


def _bounded(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bounded(each) for each in schema]
    if isinstance(schema, tuple):
        return tuple(_bounded(each) for each in schema)
    if not isinstance(schema, dict):
        return schema
    bounded = {name: _bounded(value) for name, value in schema.items()}
    match bounded.get("type"):
        case "list":
            bounded["fail_fast"] = True
            if bounded.get("items_schema", {}).get("type", "any") not in _SCALARS:
                return _at_most(MAX_OBJECTS, "elements", list, bounded)
        case "dict" if bounded.get("values_schema", {}).get("type", "any") != "any":
            return _at_most(MAX_ENTRIES, "entries", dict, bounded)
    return bounded


def _at_most(limit: int, what: str, kind: type, schema: Any) -> Any:
    def check(value: Any) -> Any:
        if isinstance(value, kind) and len(value) > limit:  # type: ignore[arg-type]
            raise PydanticCustomError(
                "too_many",
                f"it has {len(value)} {what}, but may have {limit}",  # type: ignore[arg-type]
            )
        return value

    before: Callable[[Any], Any] = check
    return core_schema.no_info_before_validator_function(before, schema)
