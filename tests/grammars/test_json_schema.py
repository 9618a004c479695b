"""Schemas as tools write them: what they mean is enforced, or refused by name and place."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.errors import ParameterError
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from caudal.grammars.exact_integers import integer_pattern
from caudal.structured_outputs import StructuredOutputsParams, json_rule
from caudal.subschemas import closed
from support.fake_executor import allows
from support.vocabularies import bpe_metadata, make_tokenizer


class Held:
    """Answers that are held to a schema, as a whole and as part of a larger grammar."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.compiler = GrammarCompiler(tokenizer)

    def accepts(self, schema: Any, text: str) -> bool:
        whole = StructuredOutputsParams(json=schema if isinstance(schema, str) else dict(schema))
        result = self._accepts(whole, text)
        if isinstance(schema, dict):
            part = StructuredOutputsParams(grammar=f'start: "<" arg ">"\narg: {json_rule(schema)}')
            assert self._accepts(part, f"<{text}>") == result
        return result

    def _accepts(self, wanted: StructuredOutputsParams, text: str) -> bool:
        matcher = self.compiler.compile_now(wanted).matcher()
        for token in self._tokenizer.encode_continuation(text):
            if not allows(matcher.allowed(), token):
                return False
            matcher.accept([token])
        ends = self._tokenizer.eos_ids
        return matcher.complete or any(allows(matcher.allowed(), end) for end in ends)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    return Held(make_tokenizer(tmp_path_factory.mktemp("bpe"), bpe_metadata()))


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        *(
            {"type": "string", "format": name}
            for name in (
                "path", "password", "binary", "byte", "regex", "uri-reference", "color",
                "uri-template", "json-pointer", "idn-email", "file-path", "char", "base64url",
            )
        ),
        {"format": "int64"},
        {"type": "string", "nullable": True, "example": "x", "deprecated": True, "x-o": {"a": 1}},
        {"type": "string", "x-y": {"pattern": "a**", "not": {}}, "default": {"pattern": "a**"}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$id": "https://example.org/x.json",
            "$comment": "c",
            "title": "T",
            "description": "d",
            "examples": ["a"],
            "readOnly": True,
            "writeOnly": False,
            "contentEncoding": "base64",
            "contentMediaType": "image/png",
            "contentSchema": {},
            "type": "string",
        },
        {"type": "string", "enum": None, "default": None, "items": None, "properties": None},
        {"type": "string", "maxLength": 9223372036854775807, "minLength": 0.0},
        {"type": "string", "required": True},
        {"type": "string", "not": False, "then": {}, "minContains": 2},
        {"type": "string", "if": {"maxLength": 1}},
        {"type": "string", "pattern": r"^[^]*$"},
        {"anyOf": [TEXT, {"type": "null"}], "default": None, "title": "Name"},
        {"oneOf": [TEXT, {"type": "number"}]},
        {"oneOf": [TEXT, {"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "number"}}},
    ],
)  # fmt: skip
def test_what_says_nothing_about_validity_keeps_no_answer_out(held: Held, schema: Any) -> None:
    assert held.accepts(schema, '"any text"')


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "array", "items": TEXT, "uniqueItems": False}, '["a", "a"]', "[1]"),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, '["a"]', '["a", "b"]'),
        ({"type": "array", "contains": TEXT, "minContains": 0}, "[1]", "{}"),
        ({"type": "string", "format": "date", "x": 1}, '"2020-02-03"', '"x"'),
        ({"type": "string", "pattern": "^[a-z&&[^b]]$"}, '"&]"', '"a"'),
        ({"type": "string", "pattern": r"^.$"}, '"x"', r'"\r"'),
        (
            {"type": "object", "propertyNames": TEXT, "additionalProperties": {"type": "number"}},
            '{"a": 1}',
            '{"a": "b"}',
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["a.b", "c"]}, "maxProperties": 2},
            '{"a.b": "x", "c": "y"}',
            '{"axb": "x"}',
        ),
        (
            {
                "$defs": {"kind": {"enum": ["cat", "dog"], "title": "Kind"}},
                "propertyNames": {"$ref": "#/$defs/kind"},
                "type": "object",
            },
            '{"dog": 1}',
            '{"cow": 1}',
        ),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, '{"ab": 1}', '{"abc": 1}'),
        ({"type": "object", "propertyNames": {"pattern": "^x-"}}, '{"x-a": 1}', '{"a": 1}'),
        (
            {"type": "object", "properties": {"a": TEXT, "b": {"not": {}}}},
            '{"a": "x"}',
            '{"b": 1}',
        ),
        (
            {"type": "object", "properties": {"a": TEXT}, "unevaluatedProperties": False},
            '{"a": "x"}',
            '{"a": "x", "b": 1}',
        ),
        (
            {"type": "object", "required": ["a", "b"], "dependentRequired": {"a": ["b"]}},
            '{"a": 1, "b": 1}',
            '{"a": 1}',
        ),
        (
            {"components": {"schemas": {"P": {"type": "string", "format": "path"}}},
             "$ref": "#/components/schemas/P"},
            '"x"',
            "1",
        ),
        ({"type": "array", "maxItems": 2.0}, "[1, 2]", "[1, 2, 3]"),
        ({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 5}, "-7", "6"),
        ({"const": -0.0}, "0", "-0"),
    ],
)  # fmt: skip
def test_what_can_be_said_otherwise_is_enforced(
    held: Held, schema: Any, good: str, bad: str
) -> None:
    assert held.accepts(schema, good)
    assert not held.accepts(schema, bad)


CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "name": TEXT}}


def test_one_of_what_a_field_tells_apart(held: Held) -> None:
    """As pydantic writes a union with a discriminator."""
    schema = {
        "$defs": {
            "Cat": {**CAT, "required": ["kind", "lives"]},
            "Dog": {**DOG, "required": ["kind", "name"]},
        },
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat"}},
    }
    assert held.accepts(schema, '{"kind": "dog", "name": "Rex"}')
    assert not held.accepts(schema, '{"kind": "cat", "name": "Tom"}')


def test_what_pydantic_makes_of_a_model(held: Held) -> None:
    class Item(pydantic.BaseModel):
        path: str = pydantic.Field("x", json_schema_extra={"format": "path"})
        size: int = pydantic.Field(ge=0, le=2**63 - 1)

    class Order(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")

        ids: list[int]
        items: dict[str, Item] = pydantic.Field(default_factory=dict)
        note: str | None = None
        secret: pydantic.SecretStr | None = None

    order = {
        "ids": [1, 2],
        "items": {"a": {"path": "/", "size": 9223372036854775807}},
        "note": None,
    }
    assert held.accepts(Order.model_json_schema(), json.dumps(order))
    Order.model_validate(order)
    order["items"]["a"]["size"] += 1  # type: ignore[index]
    assert not held.accepts(Order.model_json_schema(), json.dumps(order))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, ["in properties.a.items"]),
        ({"properties": {"a": {"not": {"const": 1}}}}, ['"not" in properties.a']),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["oneOf", "anyOf"]),
        ({"properties": {"a": TEXT}, "dependentRequired": {"a": ["b"]}}, ["dependentRequired"]),
        (
            {"$defs": {"a": {"if": TEXT, "then": {"maxLength": 2}}}, "$ref": "#/$defs/a"},
            ['"if" in $defs.a'],
        ),
        ({"propertyNames": {"pattern": "a"}, "properties": {"b": {}}}, ["propertyNames"]),
        ('{"const": 1e400}', ["const", "double"]),
        ('{"properties": {"a": {"maximum": 1e400}}}', ["maximum in properties.a", "double"]),
        ({"type": "number", "maximum": 10**400}, ["maximum", "2^63"]),
        ({"type": "number", "maximum": 2**64}, ["maximum", "2^63"]),
        ({"type": "number", "maximum": 2**53 + 1}, ["maximum", "2^53"]),
        ({"type": "integer", "maximum": 2**60, "multipleOf": 3}, ["2^53", "multipleOf"]),
        ({"allOf": [{"const": 2**60}, {}]}, ["2^53", "allOf"]),
        ({"type": "string", "pattern": "[[:alpha:]]"}, ["[:alpha:]"]),
    ],
)  # fmt: skip
def test_what_changes_validity_and_is_not_enforced_is_refused_by_name(
    held: Held, schema: Any, says: list[str]
) -> None:
    with pytest.raises(ParameterError) as error:
        held.accepts(schema, "1")
    for words in says:
        assert words in str(error.value)
    assert "coerce" not in str(error.value)


@given(
    low=st.none() | st.integers(-(10**6), 10**6),
    span=st.none() | st.integers(0, 10**6),
    values=st.lists(st.integers(-(10**7), 10**7), min_size=5),
)
def test_patterns_of_integers_are_exact(
    low: int | None, span: int | None, values: list[int]
) -> None:
    high = None if span is None else (low or 0) + span
    pattern = re.compile(integer_pattern(low, high))
    edges = [edge + by for edge in (low, high) if edge is not None for by in (-1, 0, 1)]
    for value in [*values, *edges]:
        inside = (low is None or value >= low) and (high is None or value <= high)
        assert (pattern.fullmatch(str(value)) is not None) == inside
    assert not any(pattern.fullmatch(text) for text in ("", "-", "-0", "00", "01", "1.0"))


BIG = 1234567890123456789


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": [BIG]}, f"{BIG}", f"{BIG - 21}"),
        ({"const": 9007199254740993}, "9007199254740993", "9007199254740992"),
        ({"enum": [[BIG], {"a": -BIG}, "x"]}, f'{{"a": -{BIG}}}', f"[{BIG + 1}]"),
        ({"type": "integer", "minimum": -(2**63)}, f"-{2**63}", f"-{2**63 + 1}"),
        ({"type": "integer", "exclusiveMinimum": -(2**63)}, f"-{2**63 - 1}", f"-{2**63}"),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, f"{2**64 - 1}", f"{2**64}"),
        ({"type": ["integer", "null"], "maximum": 2**63 - 1}, f"{2**63 - 1}", f"{2**63}"),
        ({"type": ["integer", "string"], "maximum": 2**70, "maxLength": 1}, '"a"', '"ab"'),
        (
            {"type": "object", "properties": {"id": {"enum": [BIG]}, "n": TEXT}},
            f'{{"id": {BIG}, "n": "x", "more": 1}}',
            f'{{"id": {BIG}, "id": {BIG}}}',
        ),
        (
            {"type": "object", "properties": {"a": TEXT, "id": {"const": BIG}},
             "additionalProperties": False},
            f'{{"id": {BIG}}}',
            f'{{"id": {BIG}, "b": 1}}',
        ),
        ({"type": "array", "items": {"const": BIG}, "maxItems": 2}, f"[{BIG}, {BIG}]", "[7]"),
        (
            {
                "$defs": {"id": {"type": "integer", "maximum": 2**63 - 1}, "s": TEXT},
                "type": "object",
                "properties": {
                    "ids": {"type": "array", "items": {"$ref": "#/$defs/id"}},
                    "s": {"$ref": "#/$defs/s"},
                    "either": {"anyOf": [{"$ref": "#/$defs/id"}, {"type": "null"}]},
                },
                "required": ["ids"],
            },
            f'{{"ids": [{2**63 - 1}], "s": "x", "either": null}}',
            f'{{"ids": [{2**63}]}}',
        ),
    ],
)  # fmt: skip
def test_integers_beyond_doubles_are_exact(held: Held, schema: Any, good: str, bad: str) -> None:
    jsonschema.validate(json.loads(good), schema)
    assert held.accepts(schema, good)
    assert not held.accepts(schema, bad)


def test_no_listed_key_comes_twice(held: Held) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "é\t": {}}}
    assert held.accepts(schema, '{"a": 1, "b": 2}')
    assert held.accepts(schema, '{"é\\t": 1, "b": 2}')
    for again in ('"a"', '"\\u0061"', '"é\\t"', '"\\u00e9\\t"', '"é\\u0009"'):
        assert not held.accepts(schema, f'{{"a": 1, "é\\t": 1, {again}: 2}}')
    assert not held.accepts(schema, '{"b": 2, "a": 1}')  # others come after


def test_constants_may_hold_any_character(held: Held) -> None:
    assert held.accepts({"enum": ["\x01", "b"]}, '"\\u0001"')


def test_objects_can_be_closed(held: Held) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"type": "object", "properties": {"b": TEXT}},
            "open": {"type": "object", "properties": {"b": TEXT}, "additionalProperties": True},
            "free": {"type": "object"},
            "both": {"allOf": [{"properties": {"x": TEXT}}, {"properties": {"y": TEXT}}]},
        },
    }
    for form in (schema, json.dumps(schema)):
        params = StructuredOutputsParams(json=form, disable_additional_properties=True)
        assert isinstance(params.json, str)
        assert held.accepts(params.json, '{"a": {"b": "x"}, "free": {"z": 1}}')
        assert held.accepts(params.json, '{"open": {"z": 1}, "both": {"x": "1", "y": "2"}}')
        assert not held.accepts(params.json, '{"z": 1}')
        assert not held.accepts(params.json, '{"a": {"z": 1}}')
    assert closed(True) is True
    assert StructuredOutputsParams(json="{", disable_additional_properties=True).json == "{"


_KEYWORDS = (
    "type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf",
    "oneOf", "allOf", "format", "pattern", "patternProperties", "propertyNames", "minimum",
    "maximum", "exclusiveMinimum", "minItems", "maxItems", "maxLength", "$ref", "$defs", "not",
    "if", "then", "uniqueItems", "contains", "dependentRequired", "unevaluatedProperties",
)  # fmt: skip
_values = st.recursive(
    st.sampled_from(
        [None, True, False, 0, -1, 2**60, 10**400, 1.5, 1e300, "", "a", "integer", "object", "date",
         "array", "#", "#/$defs/a", "["]
    ),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from((*_KEYWORDS, "a")), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300)
@given(schema=st.dictionaries(st.sampled_from(_KEYWORDS), _values, max_size=6))
def test_whatever_a_schema_is_it_is_enforced_or_refused(held: Held, schema: dict[str, Any]) -> None:
    for params in (
        StructuredOutputsParams(json=schema),
        StructuredOutputsParams(json=schema, disable_additional_properties=True),
        StructuredOutputsParams(grammar=f"start: a\na: {json_rule(schema)}"),
    ):
        with contextlib.suppress(ParameterError):
            held.compiler.compile_now(params)
