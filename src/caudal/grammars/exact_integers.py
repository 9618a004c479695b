"""Grammars for schemas with integers that no double holds, which llguidance takes for others.

What leads from a schema's root to such integers is written in Lark; all that it leads past stays
a schema. So only what is common around an identifier or a 64-bit bound can be written.
"""

from __future__ import annotations

import json
from typing import Any

from caudal.grammars.json_schema import ANNOTATIONS, PreparedSchema, schema_text
from caudal.structured_outputs import JSON_STYLE

_PLAIN = {
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
}
_OF_STRINGS = {"minLength", "maxLength", "pattern", "format"}
_KEY = r'"([^"\\\x00-\x1f\x7f]|\\["\\bfnrt])*"'
_MAX_ITEMS = 256


def exact_rules(name: str, schema: PreparedSchema) -> list[str]:
    """Lark rules for a schema.

    Args:
        name: Of the rule for the whole; the names of all others begin with it.
        schema: One with `inexact` subschemas.

    Raises:
        ValueError: It says more around them than can be written.
    """
    return _Writer(name, schema).rules()


class _Writer:
    def __init__(self, name: str, schema: PreparedSchema) -> None:
        self._name = name
        self._schema = schema
        self._names: dict[int, str] = {}
        self._branches: list[Any] = []  # kept, since they are known by their ids
        self._pending: list[tuple[str, Any]] = []
        self._inexact = self._what_leads_there()

    def rules(self) -> list[str]:
        rules = [f"{self._name}: {self._rule(self._schema.root)}\n"]
        while self._pending:
            name, schema = self._pending.pop()
            rules += self._write(name, schema)
        return rules

    def _rule(self, schema: Any) -> str:
        """The name of the rule for a schema, which is written later."""
        if id(schema) not in self._names or not isinstance(schema, dict):
            self._names[id(schema)] = name = f"{self._name}_{len(self._names)}"
            self._pending.append((name, schema))
        return self._names[id(schema)]

    def _write(self, name: str, schema: Any) -> list[str]:
        if not isinstance(schema, dict) or id(schema) not in self._inexact:
            return [f"{name}: {self._embedded(schema)}\n"]
        said = {key for key in schema if key not in (*ANNOTATIONS, "$defs", "definitions")}
        kinds = schema.get("type")
        match sorted(said - {"type"}):
            case ["$ref"]:
                return [f"{name}: {self._rule(self._schema.resolve(schema['$ref']))}\n"]
            case ["anyOf"] if "type" not in said:
                return [f"{name}: {' | '.join(map(self._rule, schema['anyOf']))}\n"]
            case ["const"]:
                return [f"{name}: {_literal(schema['const'])}\n"]
            case ["enum"]:
                return [f"{name}: {' | '.join(map(_literal, schema['enum']))}\n"]
        if isinstance(kinds, list) and kinds:
            return [f"{name}: {' | '.join(self._rule_of(schema, kind) for kind in kinds)}\n"]
        known: set[str] = _PLAIN.get(kinds, set()) if isinstance(kinds, str) else set()
        if said - {"type"} - known:
            others = ", ".join(sorted(said - {"type"} - known))
            raise ValueError(
                f"it has integers beyond 2^53, which can't be enforced exactly beside {others}"
            )
        match kinds:
            case "integer":
                return [f"{name}: /{_range_of(schema)}/\n"]
            case "array":
                return self._array(name, schema)
            case _:
                return self._object(name, schema)

    def _rule_of(self, schema: dict[str, Any], kind: str) -> str:
        """The rule for what a schema of several types says of one of them."""
        known = _PLAIN.get(kind, set())
        others = (
            _OF_STRINGS.union(*_PLAIN.values())
            - known
            - (_OF_STRINGS if kind == "string" else set())
        )
        branch = {key: value for key, value in schema.items() if key not in others}
        branch["type"] = kind
        if known & branch.keys():
            self._inexact.add(id(branch))
        self._branches.append(branch)
        return self._rule(branch)

    def _array(self, name: str, schema: dict[str, Any]) -> list[str]:
        item = self._rule(schema["items"])
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if max(least, most or 0) > _MAX_ITEMS:
            raise ValueError(
                "it has integers beyond 2^53, which can't be enforced exactly in lists of more "
                f"than {_MAX_ITEMS}"
            )
        if most == 0:
            return [f'{name}: "[]"\n']
        upper = "" if most is None else str(most - 1)
        more = f'("{_ITEM_SEPARATOR}" {item}){{{max(least - 1, 0)},{upper}}}'
        empty = "" if least else ' | "[]"'
        return [f'{name}: "[" {item} {more} "]"{empty}\n']

    def _object(self, name: str, schema: dict[str, Any]) -> list[str]:
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        extra = schema.get("additionalProperties", True)
        if not required <= properties.keys():
            raise ValueError(
                "it has integers beyond 2^53, which can't be enforced exactly beside required "
                "properties that aren't listed"
            )
        count = len(properties)
        rules = [f'{name}: "{{" {name}_first0 "}}"\n']
        if extra is False:
            rules += [f'{name}_first{count}: ""\n', f'{name}_rest{count}: ""\n']
        else:
            taken = "|".join(_escaped(json.dumps(key, ensure_ascii=False)) for key in properties)
            but = f" & ~/{taken}/" if taken else ""
            terminal = f"{name}_key".upper()
            rules += [
                f"{terminal}: /{_KEY}/{but}\n",
                f'{name}_pair: {terminal} "{_KEY_SEPARATOR}" {self._rule(extra)}\n',
                f'{name}_first{count}: "" | {name}_pair {name}_rest{count}\n',
                f'{name}_rest{count}: ("{_ITEM_SEPARATOR}" {name}_pair)*\n',
            ]
        for place, (key, value) in enumerate(properties.items()):
            written = _quoted(json.dumps(key, ensure_ascii=False) + _KEY_SEPARATOR)
            member = None if value is False else f"{written} {self._rule(value)}"
            for kind, before in (("first", ""), ("rest", f'"{_ITEM_SEPARATOR}"')):
                skip = f"{name}_{kind}{place + 1}"
                if member is None:
                    rules.append(f"{name}_{kind}{place}: {skip}\n")
                    continue
                either = "" if key in required else f" | {skip}"
                rules.append(
                    f"{name}_{kind}{place}: {before} {member} {name}_rest{place + 1}{either}\n"
                )
        return rules

    def _embedded(self, schema: Any) -> str:
        """A part without such integers, as a schema of its own."""
        if not isinstance(schema, dict):
            schema = {"enum": []} if schema is False else {}
        root = self._schema.root
        beside = {name: root[name] for name in ("$defs", "definitions") if name in root}
        whole = {**beside, **schema, "x-guidance": dict(JSON_STYLE)}
        if any(not ref.startswith(("#/$defs/", "#/definitions/")) for ref in _references(whole)):
            raise ValueError(
                "it has integers beyond 2^53, which can't be enforced exactly beside references to "
                "what isn't in $defs"
            )
        return f"%json {schema_text(whole)}"

    def _what_leads_there(self) -> set[int]:
        """Ids of the subschemas that are inexact, or have such in or behind them."""
        reached = set(self._schema.inexact)
        while True:
            more = {
                id(node)
                for node in _subschemas(self._schema.root)
                if id(node) not in reached and self._leads_to(node, reached)
            }
            if not more:
                return reached
            reached |= more

    def _leads_to(self, node: dict[str, Any], reached: set[int]) -> bool:
        if id(self._schema.resolve(node.get("$ref"))) in reached:
            return True
        below = (value for key, value in node.items() if key not in ("$defs", "definitions"))
        return any(
            id(item) in reached
            for value in below
            for item in (
                value,
                *(value.values() if isinstance(value, dict) else ()),
                *(value if isinstance(value, list) else ()),
            )
        )


_ITEM_SEPARATOR = JSON_STYLE["item_separator"]
_KEY_SEPARATOR = JSON_STYLE["key_separator"]


def _subschemas(node: Any) -> list[dict[str, Any]]:
    found, pending = [], [node]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            found.append(value)
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return found


def _references(node: Any) -> list[str]:
    return [part["$ref"] for part in _subschemas(node) if isinstance(part.get("$ref"), str)]


def _literal(value: Any) -> str:
    return _quoted(
        json.dumps(value, ensure_ascii=False, separators=(_ITEM_SEPARATOR, _KEY_SEPARATOR))
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\u{{{ord(char):x}}}" for char in text)


def _range_of(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    beyond, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if beyond is True and low is not None:  # as in draft 4
        low, beyond = low + 1, None
    if below is True and high is not None:
        high, below = high - 1, None
    if isinstance(beyond, int) and not isinstance(beyond, bool):
        low = beyond + 1 if low is None else max(low, beyond + 1)
    if isinstance(below, int) and not isinstance(below, bool):
        high = below - 1 if high is None else min(high, below - 1)
    if low is not None and high is not None and low > high:
        raise ValueError(f"no integer is at least {low} and at most {high}")
    return integer_pattern(low, high)


def integer_pattern(low: int | None, high: int | None) -> str:
    """A pattern for the integers from `low` to `high`; None for no bound."""
    parts = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        parts += [f"-({_magnitudes(least, None if low is None else -low)})"]
    if high is None or high >= 0:
        parts.append(_magnitudes(max(low or 0, 0), high))
    return f"({'|'.join(parts)})"


def _magnitudes(low: int, high: int | None) -> str:
    """A pattern for whole numbers without a sign."""
    if low == 0:
        return "0" if high == 0 else f"0|{_magnitudes(1, high)}"
    parts = []
    longest = len(str(low if high is None else high))
    for length in range(len(str(low)), longest + 1):
        first = str(max(low, 10 ** (length - 1)))
        last = str(10**length - 1 if high is None else min(high, 10**length - 1))
        parts.append(_same_length(first, last))
    if high is None:
        parts.append(f"[1-9][0-9]{{{longest},}}")
    return "|".join(parts)


def _same_length(low: str, high: str) -> str:
    """A pattern for the numbers between two with as many digits."""
    if not low:
        return ""
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:] != "0" * rest:
        parts.append(low[0] + _same_length(low[1:], "9" * rest))
        first += 1
    if high[1:] != "9" * rest:
        parts.append(high[0] + _same_length("0" * rest, high[1:]))
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return f"({'|'.join(parts)})"
