"""Grammars for arguments that are written one by one: `f(a=1)`, `<parameter=a>1</parameter>`.

Each value follows its own schema. Strings may stand between a format's own marks, as they are, and
in some formats those within lists and objects too; all other values are JSON. Schemas that say more
than which arguments there are can't be written so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from caudal.grammars.json_schema import ANNOTATIONS, ENFORCED_FORMATS
from caudal.structured_outputs import json_rule

ANY_TEXT = "(.|\\n)*"
"""The pattern of any text, which matches no control token."""

_PLAIN = ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_PLAIN_STRING = ANNOTATIONS | {"type", "enum"}
_PLAIN_LIST = ANNOTATIONS | {"type", "items", "minItems", "maxItems"}
_MAX_ITEMS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSyntax:
    """How a string is written as it is.

    Attributes:
        begin: Before the text.
        end: After it; the first that occurs ends it.
        pad: What models write between the text and its end, and readers drop.
        tail: After the end.
        head: In place of the argument's `head`, where that says that a text follows.
    """

    begin: str
    end: str
    pad: str = ""
    tail: str = ""
    head: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSyntax:
    """How one argument is written.

    Attributes:
        head: Before the value, with `KEY` in place of the argument's name.
        tail: After it.
        separator: Between arguments.
        text: How strings are written; None where they are JSON too.
        nested: Whether lists and objects are written so throughout: objects as the arguments are,
            in braces. What a schema says of them beyond that only JSON can follow.
    """

    head: str
    tail: str = ""
    separator: str = ""
    text: TextSyntax | None = None
    nested: bool = False


def can_write(schema: Mapping[str, Any], syntax: MemberSyntax) -> bool:
    """Whether arguments of this schema can be written one by one."""
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    return (
        _says_only(schema, _PLAIN)
        and isinstance(properties, dict)
        and isinstance(required, list)
        and set(map(str, required)) <= properties.keys()
        and all(_is_name(key) for key in properties)
        and '"$ref"' not in json.dumps(properties)
        and all(_can_write_value(value, syntax) for value in properties.values())
    )


def member_rules(
    rule: str,
    schema: Mapping[str, Any],
    syntax: MemberSyntax,
    *,
    literal: Callable[[str], str],
    special_in: Callable[[str], int],
) -> list[str]:
    """Lark rules for arguments in the order of the schema, optional ones left out or not.

    Args:
        rule: The name of the rule for all of them; the others' begin with it.
        schema: Of an object for which `can_write` holds.
        syntax: How arguments are written.
        literal: What matches a text in the grammar.
        special_in: Where in a text the first control token begins; -1 where it has none.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    count = len(properties)
    separator = literal(syntax.separator)
    rules = [f"{rule}: {rule}_first0\n", f'{rule}_first{count}: ""\n', f'{rule}_rest{count}: ""\n']
    for place, (key, value) in enumerate(properties.items()):
        member = f"{rule}_member{place}"
        rules += _value_rules(member, key, value, syntax, literal, special_in)
        for name, before in (("first", ""), ("rest", separator)):
            skip = "" if key in required else f" | {rule}_{name}{place + 1}"
            rules.append(f"{rule}_{name}{place}: {before} {member} {rule}_rest{place + 1}{skip}\n")
    return rules


def _value_rules(
    member: str,
    key: str,
    schema: Any,
    syntax: MemberSyntax,
    literal: Callable[[str], str],
    special_in: Callable[[str], int],
) -> list[str]:
    text = syntax.text
    if text is not None and _is_string(schema):
        head = (syntax.head if text.head is None else text.head).replace("KEY", key)
        return _text_rules(member, head, schema, text, literal, special_in)
    head = syntax.head.replace("KEY", key)
    value = f"{member}_value"
    return [
        f"{member}: {literal(head)} {value} {literal(syntax.tail)}\n",
        *_inner_rules(value, schema, syntax, literal, special_in),
    ]


def _text_rules(
    rule: str,
    head: str,
    schema: Mapping[str, Any],
    text: TextSyntax,
    literal: Callable[[str], str],
    special_in: Callable[[str], int],
) -> list[str]:
    """A string between its marks."""
    begin, tail = literal(head + text.begin), literal(text.tail)
    if "enum" in schema:
        choices = " | ".join(map(literal, schema["enum"]))
        return [f"{rule}: {begin} ({choices}) {literal(text.pad + text.end)} {tail}\n"]
    if (place := special_in(text.end)) >= 0:  # no text holds it, so that is the end of this one
        before, end = re.escape(text.end[:place]).replace("/", "\\/"), text.end[place:]
        return [f"{rule}: {begin} /{ANY_TEXT}{before}/ {literal(end)} {tail}\n"]
    return [
        f"{rule}: {begin} {rule}_text {tail}\n",
        f"{rule}_text[lazy]: TEXT {literal(text.end)}\n",  # it ends where its end first occurs
    ]


def _inner_rules(
    rule: str,
    schema: Any,
    syntax: MemberSyntax,
    literal: Callable[[str], str],
    special_in: Callable[[str], int],
) -> list[str]:
    """A value in a format's own way, where that can follow the schema; else as JSON."""
    if syntax.nested and isinstance(schema, dict):
        kind, text = schema.get("type"), syntax.text
        if kind == "string" and text is not None and _can_write_value(schema, syntax):
            return _text_rules(rule, "", schema, text, literal, special_in)
        if kind == "array" and (times := _times(schema)) is not None:
            item = f"{rule}_item"
            separator = literal(syntax.separator)
            items = f"{item} ({separator} {item}){times}"
            if not schema.get("minItems"):
                items = f"({items})?"
            inner = _inner_rules(item, schema["items"], syntax, literal, special_in)
            return [f'{rule}: "[" {items} "]"\n', *inner]
        closed = schema.get("additionalProperties") is False
        if kind == "object" and closed and can_write(schema, syntax):
            members = f"{rule}_members"
            inner = member_rules(members, schema, syntax, literal=literal, special_in=special_in)
            return [f'{rule}: "{{" {members} "}}"\n', *inner]
    return [f"{rule}: {json_rule(schema)}\n"]


def _times(schema: Mapping[str, Any]) -> str | None:
    """How often an item may follow the first; None where a list can't be written by its items."""
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if not isinstance(schema.get("items"), dict) or not _says_only(schema, _PLAIN_LIST):
        return None
    if not all(type(count) is int and 0 <= count <= _MAX_ITEMS for count in (least, most or 1)):
        return None
    if most is None:
        return f"{{{max(least - 1, 0)},}}"
    return f"{{{max(least - 1, 0)},{most - 1}}}" if least <= most and most else None


def _can_write_value(schema: Any, syntax: MemberSyntax) -> bool:
    if not isinstance(schema, dict):
        return False
    if syntax.text is None or not _is_string(schema):
        return True
    choices = schema.get("enum", [])
    return _says_only(schema, _PLAIN_STRING) and all(
        isinstance(choice, str) and choice and choice == choice.strip() and "<" not in choice
        for choice in choices
    )


def _says_only(schema: Mapping[str, Any], known: Set[str]) -> bool:
    """Whether a schema has nothing but these keywords, and what has no effect on validity."""
    return all(
        key in known or key.startswith("x-") or (key == "format" and value not in ENFORCED_FORMATS)
        for key, value in schema.items()
    )


def _is_string(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string"


def _is_name(key: str) -> bool:
    return key.isascii() and key.isidentifier()
