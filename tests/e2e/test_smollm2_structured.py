"""Answers of a given form from real models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

from caudal import LLM, SamplingParams, StructuredOutputsParams
from caudal.formats.gguf import GGUFFile
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from support.forced_tokens import SCHEMA, check_forced_tokens

ASK: list[Any] = [{"role": "user", "content": "Describe John, a baker of 35 years, as JSON."}]


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), kv_memory=128 * 2**20, max_num_batched_tokens=64) as llm:
        yield llm


def answers(llm: LLM, wanted: StructuredOutputsParams, **more: Any) -> list[Any]:
    params = SamplingParams(structured_outputs=wanted, **{"max_tokens": 200, "seed": 5} | more)
    [result] = llm.chat(ASK, params, use_tqdm=False)
    return result.outputs


@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_forced_tokens_are_the_tokenizers(model: str, request: pytest.FixtureRequest) -> None:
    with GGUFFile.open(request.getfixturevalue(model)) as file:
        tokenizer = Tokenizer.from_gguf(file)
    check_forced_tokens(GrammarCompiler(tokenizer), tokenizer)


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 5},
        {
            "anyOf": [
                {"const": {"a": [1, 2]}},
                {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
                {"type": "string", "format": "date"},
            ]
        },
        {
            "$defs": {
                "tree": {
                    "type": "object",
                    "properties": {
                        "leaf": {"type": "integer", "minimum": 0, "maximum": 99},
                        "more": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1},
                    },
                    "required": ["leaf"],
                    "additionalProperties": False,
                }
            },
            "$ref": "#/$defs/tree",
        },
    ],
)
def test_json_conforms_to_its_schema(llm: LLM, schema: dict[str, Any]) -> None:
    outputs = answers(llm, StructuredOutputsParams(json=schema), n=3)
    outputs += answers(llm, StructuredOutputsParams(json=schema), temperature=0, logprobs=0)
    finished = [output for output in outputs if output.finish_reason == "stop"]
    assert finished
    for output in finished:
        jsonschema.validate(json.loads(output.text), schema)


def test_other_forms(llm: LLM) -> None:
    [number] = answers(llm, StructuredOutputsParams(regex=r"\+34 [0-9]{3} [0-9]{3}"))
    assert re.fullmatch(r"\+34 [0-9]{3} [0-9]{3}", number.text)
    [word] = answers(llm, StructuredOutputsParams(choice=["baker", "backer", "bakery"]))
    assert word.text in ("baker", "backer", "bakery")
    gbnf = 'root ::= "John is " [1-9] [0-9] " years old."'
    [sentence] = answers(llm, StructuredOutputsParams(grammar=gbnf), temperature=0)
    assert sentence.text == "John is 35 years old."
    assert sentence.finish_reason == "stop"


def test_an_answer_is_the_same_alone_and_in_a_crowd(llm: LLM) -> None:
    wanted = StructuredOutputsParams(json=SCHEMA)
    params = [
        SamplingParams(structured_outputs=wanted, seed=seed, max_tokens=60 + seed)
        for seed in range(6)
    ]
    alone = [llm.chat(ASK, own, use_tqdm=False)[0].outputs[0] for own in params]
    crowd = [result.outputs[0] for result in llm.chat([ASK] * 6, params, use_tqdm=False)]
    assert [output.token_ids for output in crowd] == [output.token_ids for output in alone]


class Person(pydantic.BaseModel):
    first_name: str = pydantic.Field(max_length=20)
    age_in_years: int
    occupation: Literal["baker", "teacher"]


def test_the_official_client_parses_into_a_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="smollm2", messages=ASK, temperature=0, response_format=Person
    )
    assert answer.choices[0].message.parsed == Person(
        first_name="John", age_in_years=35, occupation="baker"
    )
    with client.chat.completions.stream(
        model="smollm2", messages=ASK, temperature=0, response_format=Person
    ) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == answer.choices[0].message.content
    assert completion.choices[0].message.parsed == answer.choices[0].message.parsed
