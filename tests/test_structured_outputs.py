from __future__ import annotations

import json
from typing import Any

import pytest

from caudal.errors import ParameterError
from caudal.sampling_params import SamplingParams
from caudal.structured_outputs import (
    MAX_CHARS,
    MAX_CHOICES,
    StructuredOutputsParams,
    json_rule,
    lark_literal,
)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"json_object": False},
        {"json": {}, "regex": "a"},
        {"json_object": True, "choice": ["a"]},
        {"json": ""},
        {"json": 7},
        {"json": {"const": float("nan")}},
        {"json": {"const": object()}},
        {"json_object": 1},
        {"regex": ""},
        {"regex": 7},
        {"regex": "a" * (MAX_CHARS + 1)},
        {"regex": "\ud800"},
        {"grammar": ""},
        {"choice": []},
        {"choice": "yes"},
        {"choice": ["yes", ""]},
        {"choice": ["yes", 7]},
        {"choice": ["a"] * (MAX_CHOICES + 1)},
        {"choice": ["a" * MAX_CHARS, "b"]},
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ParameterError) as error:
        StructuredOutputsParams(**fields)
    assert error.value.param == "structured_outputs"


def test_equal_wishes_are_equal_keys() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    one = StructuredOutputsParams(json=schema)
    assert hash(one) == hash(StructuredOutputsParams(json=dict(schema)))
    assert one == StructuredOutputsParams(json=dict(schema))
    assert one != StructuredOutputsParams(json={**schema, "required": ["a"]})
    assert list(json.loads(str(one.json))["properties"]) == ["b", "a"]  # the order to write them in
    assert hash(StructuredOutputsParams(choice=["a", "b"])) == hash(
        StructuredOutputsParams(choice=("a", "b"))
    )


def test_the_kind_is_the_field_that_is_set() -> None:
    assert StructuredOutputsParams(json_object=True).kind == "json_object"
    assert StructuredOutputsParams(json="{}", json_object=False).kind == "json"
    assert StructuredOutputsParams(choice=["a"]).kind == "choice"


def test_sampling_parameters_take_nothing_else() -> None:
    with pytest.raises(ParameterError, match="StructuredOutputsParams, not dict"):
        SamplingParams(structured_outputs={"json": {}})  # type: ignore[arg-type]


def test_literals_hold_quotes_line_breaks_and_special_tokens() -> None:
    assert lark_literal('a "b"\n\\') == r'"a \"b\"\n\\"'
    assert lark_literal("") == '""'
    special = {"<|a|>": 5, "<|a|>b": 6}
    assert lark_literal("x<|a|>y<|a|>b", special) == '"x" <[5]> "y" <[6]>'
    assert lark_literal("plain", special) == '"plain"'


def test_embedded_schemas_are_written_in_the_usual_style() -> None:
    rule = json_rule({"type": "object", "x-guidance": {"lenient": True}})
    keyword, schema = rule.split(" ", 1)
    assert keyword == "%json"
    assert "lenient" not in json.loads(schema)["x-guidance"]
