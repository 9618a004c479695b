"""JSON schemas as people and their tools write them, made such as llguidance enforces.

llguidance refuses every keyword that it doesn't implement, wherever it stands and whatever it says.
Here, what says nothing is dropped, what can be said otherwise is rewritten, and what would change
which answers are valid, but can't be enforced, is refused by name and place.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from caudal.grammars.regex_dialect import rust_pattern
from caudal.grammars.schema_overlap import may_overlap
from caudal.subschemas import MAPS, SINGLE, children

MAX_PATTERN_CHARS = 8 * 1024

ENFORCED_FORMATS = frozenset(
    (
        "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid",
    )
)  # fmt: skip
"""Formats that answers are held to; all others are annotations."""

ANNOTATIONS = frozenset(
    (
        "$anchor", "$comment", "$id", "$schema", "$vocabulary", "contentEncoding",
        "contentMediaType", "contentSchema", "default", "deprecated", "description",
        "discriminator", "example", "examples", "externalDocs", "id", "nullable", "readOnly",
        "title", "writeOnly", "xml",
    )
)  # fmt: skip
"""Keywords that have no effect on which answers are valid."""

_UNENFORCED = (
    "not", "if", "contains", "uniqueItems", "propertyNames", "dependentRequired",
    "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef",
    "$recursiveRef",
)  # fmt: skip
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies")
_UNREACHABLE = 2**31
"""No answer is as long as that, so that a maximum from here on says nothing."""

_ANY: tuple[Any, ...] = (True, {})


class PreparedSchema:
    """A schema that llguidance enforces as it is meant, but for `inexact`.

    Args:
        schema: The schema, which is changed.

    Attributes:
        root: The schema.
        inexact: Ids of the subschemas with integers that llguidance, which reckons with doubles,
            would take for others.

    Raises:
        ValueError: Something in it can't be enforced; says what and where.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.root = schema
        self.inexact: set[int] = set()
        self._done: set[int] = set()
        self._references: list[str] = []
        self._prepare(schema, "")
        while self._references:
            pointer = self._references.pop()
            target = self.resolve(pointer)
            if isinstance(target, dict):
                self._prepare(target, f" at {pointer}")

    def resolve(self, reference: Any) -> Any:
        """What a reference within the schema points to; None where it points elsewhere."""
        return resolve(self.root, reference)

    @property
    def needs_unicode_escapes(self) -> bool:
        """Whether answers may have to hold a character that JSON only writes by its number."""
        return any(
            ord(char) < 32 and char not in "\b\t\n\f\r"
            for text in _constants(self.root)
            for char in text
        )

    def _prepare(self, schema: dict[str, Any], where: str) -> None:
        if id(schema) in self._done:
            return
        self._done.add(id(schema))
        for name in [name for name in schema if schema[name] is None]:
            if name not in ("const", "default"):
                del schema[name]  # clients write null for what they leave out
        _check_kinds(schema, where)
        if "$ref" in schema:
            self._references.append(schema["$ref"])
        self._drop_what_says_nothing(schema)
        self._rewrite_names(schema, where)
        self._rewrite_one_of(schema, where)
        self._check_numbers(schema, where)
        for name in _UNENFORCED:
            if name in schema:
                raise ValueError(f'"{name}"{where} is not supported')
        _translate_patterns(schema, where)
        for container, key, place in children(schema):
            child = container[key]
            if not isinstance(child, dict):
                continue
            if child.get("not", False) in _ANY:
                container[key] = False
            else:
                self._prepare(child, f"{where} in {place}" if not where else f"{where}.{place}")

    def _drop_what_says_nothing(self, schema: dict[str, Any]) -> None:
        for name, says_nothing in _SAYS_NOTHING.items():
            if name in schema and says_nothing(schema, schema[name]):
                del schema[name]
        if "contains" not in schema:
            _drop(schema, "minContains", "maxContains")
        if "then" not in schema and "else" not in schema:
            _drop(schema, "if")
        if "if" not in schema:
            _drop(schema, "then", "else")
        if schema.get("unevaluatedProperties") is False and not schema.keys() & set(_IN_PLACE):
            del schema["unevaluatedProperties"]
            schema.setdefault("additionalProperties", False)
        if schema.get("unevaluatedItems") is False and not schema.keys() & set(_IN_PLACE):
            del schema["unevaluatedItems"]
            schema.setdefault("items", False)
        if schema.get("$recursiveRef") == "#" and "$ref" not in schema:
            schema["$ref"] = schema.pop("$recursiveRef")
        for name in _COUNTS:
            count = schema.get(name)
            if isinstance(count, float) and count.is_integer():
                schema[name] = int(count)

    def _rewrite_names(self, schema: dict[str, Any], where: str) -> None:
        """Say what names of properties are like by `patternProperties`."""
        names = schema.get("propertyNames")
        if isinstance(names, dict) and isinstance(names.get("$ref"), str):
            names = self.resolve(names["$ref"])
        if names is None:
            return
        if names is True:
            del schema["propertyNames"]
            return
        if not isinstance(names, dict):
            return
        said = {name: value for name, value in names.items() if name not in ANNOTATIONS}
        if said.pop("type", "string") != "string":
            return
        if isinstance(said.get("format"), str) and said["format"] not in ENFORCED_FORMATS:
            said.pop("format", None)
        pattern = _pattern_of(said)
        listed = schema.get("properties") or schema.get("patternProperties")
        if pattern is None or (pattern and listed):
            raise ValueError(f"propertyNames{where} is not supported beside what else is said")
        del schema["propertyNames"]
        if pattern and schema.get("additionalProperties") is not False:
            schema["patternProperties"] = {pattern: schema.get("additionalProperties", True)}
            schema["additionalProperties"] = False

    def _rewrite_one_of(self, schema: dict[str, Any], where: str) -> None:
        """Say `anyOf` where that is the same: of branches that no answer matches two of."""
        branches = schema.get("oneOf")
        if not isinstance(branches, list):
            return
        for place, branch in enumerate(branches):
            for other in branches[:place]:
                if may_overlap(branch, other, self.resolve, schema.get("type")):
                    raise ValueError(
                        f"oneOf{where} demands that an answer matches one branch and no other, but "
                        "some of its branches may match the same; write anyOf instead"
                    )
        members = list(schema.items())
        schema.clear()
        for name, value in members:
            if name != "oneOf":
                schema[name] = value
            elif any(other == "anyOf" for other, _ in members):
                schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": value}]
            else:
                schema["anyOf"] = value

    def _check_numbers(self, schema: dict[str, Any], where: str) -> None:
        for name in ("enum", "const"):
            if name in schema:
                schema[name] = self._checked_constant(schema, schema[name], f"{name}{where}")
        for name in _BOUNDS:
            bound = schema.get(name)
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                continue
            if isinstance(bound, float) and not math.isfinite(bound):
                raise ValueError(f"{name}{where} is a number beyond what a double holds")
            if abs(bound) == sys.float_info.max:
                del schema[name]  # all doubles are within it
            elif _is_whole(schema.get("type")):
                schema[name] = bound = _whole_bound(name, bound)
                if abs(bound) > 2**53:
                    self.inexact.add(id(schema))
            elif abs(bound) >= 2**63:
                raise ValueError(f"{name}{where} is beyond 2^63, which only integers are held to")
            elif isinstance(bound, int) and float(bound) != bound:
                raise ValueError(f"{name}{where} is an integer beyond 2^53 that no double is")
            elif bound == 0:
                schema[name] = 0  # minus zero too

    def _checked_constant(self, schema: dict[str, Any], value: Any, where: str) -> Any:
        match value:
            case dict():
                return {
                    name: self._checked_constant(schema, item, where)
                    for name, item in value.items()
                }
            case list():
                return [self._checked_constant(schema, item, where) for item in value]
            case bool():
                return value
            case int():
                if abs(value) > 2**53:
                    self.inexact.add(id(schema))
                return value
            case float():
                if not math.isfinite(value):
                    raise ValueError(f"{where} has a number beyond what a double holds")
                if value.is_integer():
                    return self._checked_constant(schema, int(value), where)
                return value
            case _:
                return value


def resolve(root: dict[str, Any], reference: Any) -> Any:
    """What a reference within a schema points to; None where it points elsewhere.

    Args:
        root: The schema.
        reference: `#`, `#/$defs/name` and the like.
    """
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        return None
    node: Any = root
    for step in unquote(reference).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def _check_kinds(schema: dict[str, Any], where: str) -> None:
    """Raises `ValueError` for a keyword whose value is none of those that it may have."""
    for name, value in schema.items():
        if (kind := _KINDS.get(name)) is not None and not kind[1](value):
            raise ValueError(f"{name}{where} must be {kind[0]}")


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_Kind = tuple[str, Callable[[Any], bool]]
_OBJECT: _Kind = ("an object", lambda value: isinstance(value, dict))
_LIST: _Kind = ("a list", lambda value: isinstance(value, list))
_TEXT: _Kind = ("text", lambda value: isinstance(value, str))
_NUMBER: _Kind = ("a number", _is_number)
_BOUND: _Kind = ("a number", lambda value: _is_number(value) or isinstance(value, bool))
_COUNT: _Kind = ("a whole number", lambda value: _is_number(value) and value == value // 1 >= 0)
_SUBSCHEMA: _Kind = ("a schema", lambda value: isinstance(value, dict | bool))
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(MAPS, _OBJECT),
    **dict.fromkeys(("dependentRequired", "dependencies"), _OBJECT),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems", "enum"), _LIST),
    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _BOUND),
    **dict.fromkeys(_COUNTS, _COUNT),
    **dict.fromkeys(SINGLE, _SUBSCHEMA),
    "items": ("a schema or a list", lambda value: isinstance(value, dict | bool | list)),
    "type": ("a name or a list of names", lambda value: isinstance(value, str) or _is_names(value)),
    "required": ("a list of names", lambda value: _is_names(value) or isinstance(value, bool)),
}


def _drop(schema: dict[str, Any], *names: str) -> None:
    for name in names:
        schema.pop(name, None)


def _no_dependencies(schema: dict[str, Any], value: Any) -> bool:
    required = schema.get("required")
    known = set(map(str, required)) if isinstance(required, list) else set()
    return isinstance(value, dict) and all(
        (isinstance(needed, list) and set(map(str, needed)) <= known) or needed in _ANY
        for needed in value.values()
    )


_SAYS_NOTHING: dict[str, Callable[[dict[str, Any], Any], bool]] = {
    "uniqueItems": lambda schema, value: value is False or schema.get("maxItems") in (0, 1),
    "format": lambda schema, value: isinstance(value, str) and value not in ENFORCED_FORMATS,
    "not": lambda schema, value: value is False,
    "contains": lambda schema, value: (
        schema.get("minContains") == 0 and "maxContains" not in schema
    ),
    "dependentRequired": _no_dependencies,
    "dependentSchemas": _no_dependencies,
    "dependencies": _no_dependencies,
    "unevaluatedProperties": lambda schema, value: (
        value in _ANY or "additionalProperties" in schema
    ),
    "unevaluatedItems": lambda schema, value: value in _ANY or "items" in schema,
    "then": lambda schema, value: value in _ANY,
    "else": lambda schema, value: value in _ANY,
    "required": lambda schema, value: isinstance(value, bool),  # of draft 3, about the parent
    "maxLength": lambda schema, value: _is_unreachable(value),
    "maxItems": lambda schema, value: _is_unreachable(value),
    "maxProperties": lambda schema, value: _is_unreachable(value),
}
"""By keyword, whether its value in a schema asks for nothing."""


def _is_unreachable(value: Any) -> bool:
    return isinstance(value, int | float) and value >= _UNREACHABLE


def _pattern_of(said: dict[str, Any]) -> str | None:
    """The pattern for what a schema says of a name; "" for nothing, None where there is none."""
    match said:
        case {} if not said:
            return ""
        case {"pattern": str(pattern)} if len(said) == 1:
            return pattern
        case {"enum": list(names)} if len(said) == 1:
            return _choice(names)
        case {"const": str(name)} if len(said) == 1:
            return _choice([name])
        case _ if said.keys() <= {"minLength", "maxLength"}:
            return f"^[\\s\\S]{{{said.get('minLength', 0)},{said.get('maxLength', '')}}}$"
        case _:
            return None


def _choice(names: list[Any]) -> str | None:
    if not all(isinstance(name, str) for name in names):
        return None
    escaped = ("".join(f"\\u{{{ord(char):x}}}" for char in name) for name in names)
    return f"^(?:{'|'.join(escaped)})$"


def _is_whole(kinds: Any) -> bool:
    """Whether all numbers of these types are integers."""
    return kinds == "integer" or (
        isinstance(kinds, list) and "integer" in kinds and "number" not in kinds
    )


def _whole_bound(name: str, bound: float) -> int:
    """The nearest integer within a bound."""
    up = name in ("minimum", "exclusiveMaximum")
    return math.ceil(bound) if up else math.floor(bound)


def _translate_patterns(schema: dict[str, Any], where: str) -> None:
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = translated(schema["pattern"], ecma=True)
    if isinstance(schema.get("patternProperties"), dict):
        schema["patternProperties"] = {
            translated(pattern, ecma=True): value
            for pattern, value in schema["patternProperties"].items()
        }


def translated(pattern: str, *, ecma: bool = False) -> str:
    """See `rust_pattern`.

    Raises:
        ValueError: It is too long, or dialects disagree on it.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(
            f"a pattern may have {MAX_PATTERN_CHARS} characters, but has {len(pattern)}"
        )
    return rust_pattern(pattern, ecma=ecma)


def _constants(node: Any) -> Iterator[str]:
    """All texts in a schema's constants, and whatever else there is below them."""
    pending = [(node, False)]
    while pending:
        value, constant = pending.pop()
        match value:
            case dict():
                pending += [
                    (item, constant or name in ("const", "enum")) for name, item in value.items()
                ]
            case list():
                pending += [(item, constant) for item in value]
            case str() if constant:
                yield value


def schema_text(schema: Any) -> str:
    """A schema as text, for llguidance."""
    return json.dumps(schema, ensure_ascii=False, allow_nan=False)
