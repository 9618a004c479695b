"""Forced tokens held to what the tokenizer itself makes of whole texts."""

from __future__ import annotations

import json
from typing import Any

from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from caudal.structured_outputs import StructuredOutputsParams


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMA = _object(
    name={"type": "string"},
    age={"type": "integer"},
    height={"type": "number"},
    employed={"type": "boolean"},
    tags={"type": "array", "items": {"type": "string"}},
    kind={"enum": ["cat", "catfish", "dog"]},
    value=_object(x={"type": ["null", "integer"]}),
)
TEXTS = (
    '{"name": "John Smith", "age": 35, "height": 1.85, "employed": true, '
    '"tags": ["a", "big one"], "kind": "catfish", "value": {"x": null}}',
    '{"name": "", "age": -7, "height": -0.5, "employed": false, "tags": [], "kind": "cat", '
    '"value": {"x": 12}}',
    '{"name": " día \\"q\\" \\\\", "age": 0, "height": 10, "employed": false, '
    '"tags": ["{", "\\n"], "kind": "dog", "value": {"x": -1}}',
)


def check_forced_tokens(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """Wherever tokens are forced, they are those that the tokenizer cuts the whole text into."""
    grammar = compiler.compile_now(StructuredOutputsParams(json=SCHEMA))
    for text in TEXTS:
        json.loads(text)
        tokens = tokenizer.encode_continuation(text)
        matcher = grammar.matcher()
        skipped = 0
        for place, token in enumerate(tokens):
            forced = list(matcher.forced())
            assert tokens[place : place + len(forced)] == forced, text
            skipped += bool(forced)
            matcher.accept([token])
        assert matcher.complete
        assert skipped > len(tokens) // 3
