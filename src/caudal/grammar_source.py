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

from caudal.regex_dialect import check_pattern
from caudal.structured_outputs import JSON_STYLE, StructuredOutputsParams, lark_literal

MAX_PATTERN_CHARS = 8 * 1024
MAX_RULES_CHARS = 32 * 1024
"""Most characters of a grammar without the schemas in it."""

MAX_SCHEMA_NODES = 10_000
"""Most objects and lists in a schema: each may be a level of a chain of references."""

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_EMBEDDED_SCHEMA = re.compile(r"%json\s*(?=\{)")
_NOT_SUBSCHEMAS = frozenset({"const", "default", "enum", "examples"})


def grammar_source(wanted: StructuredOutputsParams) -> str:
    """The grammar in llguidance's form. Whether it compiles remains to be seen.

    Raises:
        ValueError: It is too large, or can't be read; says what and where.
    """
    match wanted.kind:
        case "json":
            assert isinstance(wanted.json, str)
            return _from_schema(wanted.json)
        case "json_object":
            return _from_schema('{"type": "object"}')
        case "regex":
            assert wanted.regex is not None
            _check_pattern(wanted.regex)
            return LLMatcher.grammar_from_regex(wanted.regex)
        case "choice":
            assert wanted.choice is not None
            choices = " | ".join(map(lark_literal, wanted.choice))
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case _:
            assert wanted.grammar is not None
            return _from_grammar(wanted.grammar)


def _from_schema(text: str) -> str:
    schema = json.loads(text)
    if not isinstance(schema, dict):
        raise ValueError("a schema must be a JSON object")
    _check_schema(schema)
    options: Any = {**JSON_STYLE, "lenient": False}
    return LLMatcher.grammar_from_json_schema(text, overrides=options)


def _from_grammar(text: str) -> str:
    embedded = 0
    for start in _EMBEDDED_SCHEMA.finditer(text):
        try:
            schema, end = json.JSONDecoder().raw_decode(text, start.end())
        except json.JSONDecodeError:
            continue  # the compiler will say where and why
        _check_schema(schema)
        embedded += end - start.end()
    if len(text) - embedded > MAX_RULES_CHARS:
        raise ValueError(
            f"it may have {MAX_RULES_CHARS} characters beside schemas, but has "
            f"{len(text) - embedded}"
        )
    if _GBNF_RULE.search(text):
        try:
            text = gbnf_to_lark(text)
        except Exception as error:  # the converter raises plain exceptions
            raise ValueError(str(error)) from error
    return LLMatcher.grammar_from_lark(text)


def _check_schema(schema: Any) -> None:
    nodes = 0
    pending = [(schema, True)]
    while pending:
        node, is_schema = pending.pop()
        if not isinstance(node, dict | list):
            continue
        nodes += 1
        if nodes > MAX_SCHEMA_NODES:
            raise ValueError(f"it has more than {MAX_SCHEMA_NODES} objects and lists")
        if isinstance(node, list):
            pending += [(item, is_schema) for item in node]
            continue
        pending += [
            (value, is_schema and key not in _NOT_SUBSCHEMAS) for key, value in node.items()
        ]
        if is_schema:
            _check_patterns(node)


def _check_patterns(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("pattern"), str):
        _check_pattern(schema["pattern"])
    if isinstance(schema.get("patternProperties"), dict):
        for pattern in schema["patternProperties"]:
            _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(
            f"a pattern may have {MAX_PATTERN_CHARS} characters, but has {len(pattern)}"
        )
    check_pattern(pattern)
