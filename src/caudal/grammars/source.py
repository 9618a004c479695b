"""From what a request wants to a grammar in llguidance's form, with its size bounded.

llguidance bounds the work on patterns and rules by itself, but not how deep it goes into references
nor how fast some of its steps grow; the limits here are for those.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from caudal.grammars.exact_integers import exact_rules
from caudal.grammars.json_schema import PreparedSchema, schema_text, translated
from caudal.structured_outputs import JSON_STYLE, StructuredOutputsParams, lark_literal

MAX_RULES_CHARS = 32 * 1024
"""Most characters of a grammar without the schemas in it."""

MAX_SCHEMA_NODES = 10_000
"""Most objects and lists in a schema: each may be a level of a chain of references."""

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_EMBEDDED_SCHEMA = re.compile(r"%json\s*(?=\{)")


def grammar_source(form: StructuredOutputsParams) -> str:
    """The grammar in llguidance's form. Whether it compiles remains to be seen.

    Raises:
        ValueError: It is too large, or can't be read; says what and where.
    """
    match form.kind:
        case "json":
            assert isinstance(form.json, str)
            return _from_schema(form.json)
        case "json_object":
            return _from_schema('{"type": "object"}')
        case "regex":
            assert form.regex is not None
            return LLMatcher.grammar_from_regex(translated(form.regex))
        case "choice":
            assert form.choice is not None
            choices = " | ".join(map(lark_literal, form.choice))
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case _:
            assert form.grammar is not None
            return _from_grammar(form.grammar)


def _from_schema(text: str) -> str:
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("a schema must be a JSON object")
    _check_size(schema)
    schema.pop("x-guidance", None)
    prepared = PreparedSchema(schema)
    if prepared.inexact:
        return LLMatcher.grammar_from_lark("".join(exact_rules("start", prepared)))
    options: Any = {**JSON_STYLE, "lenient": False}
    if prepared.needs_unicode_escapes:
        del options["json_allowed_escapes"]
    return LLMatcher.grammar_from_json_schema(schema_text(schema), overrides=options)


def _from_grammar(text: str) -> str:
    pieces: list[str] = []
    exact: list[str] = []
    embedded = place = 0
    while (start := _EMBEDDED_SCHEMA.search(text, place)) is not None:
        pieces.append(text[place : start.start()])
        try:
            schema, end = json.JSONDecoder().raw_decode(text, start.end())
        except json.JSONDecodeError:  # the compiler will say where and why
            pieces.append(start[0])
            place = start.end()
            continue
        embedded += end - start.end()
        place = end
        pieces.append(_embedded(schema, f"exact{len(exact)}", exact))
    rules = "".join((*pieces, text[place:]))
    if len(text) - embedded > MAX_RULES_CHARS:
        raise ValueError(
            f"it may have {MAX_RULES_CHARS} characters beside schemas, but has "
            f"{len(text) - embedded}"
        )
    if _GBNF_RULE.search(rules):
        try:
            rules = gbnf_to_lark(rules)
        except Exception as error:  # the converter raises plain exceptions
            raise ValueError(str(error)) from error
    return LLMatcher.grammar_from_lark("\n".join((rules, *exact)))


def _embedded(schema: dict[str, Any], name: str, exact: list[str]) -> str:
    """What stands for a schema in a grammar: rules of its own are added to `exact`."""
    _check_size(schema)
    style = schema.pop("x-guidance", None)
    prepared = PreparedSchema(schema)
    if prepared.inexact:
        exact += exact_rules(name, prepared)
        return name
    if isinstance(style, dict):
        schema["x-guidance"] = {**style, "lenient": False, "coerce_one_of": False}
        if prepared.needs_unicode_escapes:
            schema["x-guidance"].pop("json_allowed_escapes", None)
    return f"%json {schema_text(schema)}"


def _check_size(schema: Any) -> None:
    nodes = 0
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict | list):
            nodes += 1
            pending += node.values() if isinstance(node, dict) else node
        if nodes > MAX_SCHEMA_NODES:
            raise ValueError(f"it has more than {MAX_SCHEMA_NODES} objects and lists")
