"""Grammars for arguments that are written one by one: `f(a=1)`, `<parameter=a>1</parameter>`.

Each value follows its own schema. Strings may stand between a format's own marks, as they are; all
other values are JSON. Schemas that say more than which arguments there are can't be written so.
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
    """

    head: str
    tail: str = ""
    separator: str = ""
    text: TextSyntax | None = None


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
    if text is None or not _is_string(schema):
        head = syntax.head.replace("KEY", key)
        return [
            f"{member}: {literal(head)} {member}_value {literal(syntax.tail)}\n",
            f"{member}_value: {json_rule(schema)}\n",
        ]
    head = (syntax.head if text.head is None else text.head).replace("KEY", key)
    begin, tail = literal(head + text.begin), literal(text.tail)
    if "enum" in schema:
        choices = " | ".join(map(literal, schema["enum"]))
        return [f"{member}: {begin} ({choices}) {literal(text.pad + text.end)} {tail}\n"]
    if (place := special_in(text.end)) >= 0:  # no text holds it, so that is the end of this one
        before, end = re.escape(text.end[:place]).replace("/", "\\/"), text.end[place:]
        return [f"{member}: {begin} /{ANY_TEXT}{before}/ {literal(end)} {tail}\n"]
    return [
        f"{member}: {begin} {member}_text {tail}\n",
        f"{member}_text[lazy]: TEXT {literal(text.end)}\n",  # it ends where its end first occurs
    ]


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
