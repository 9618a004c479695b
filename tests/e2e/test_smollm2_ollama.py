"""Ollama's API of a real model, by its official client."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest

QUESTION = "What is the capital of Spain?"
BRIEF = "Answer in one short sentence."
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 32}


@pytest.fixture(scope="module")
def client(server_url: str) -> ollama.Client:
    return ollama.Client(server_url, timeout=120)


def test_a_conversation_goes_on(client: ollama.Client):
    first = client.generate("smollm2", QUESTION, system=BRIEF, options=GREEDY)
    assert "Madrid" in (first.response or "")
    assert first.context is not None
    assert len(first.context) == (first.prompt_eval_count or 0) + (first.eval_count or 0)
    second = client.generate("smollm2", "And of France?", context=first.context, options=GREEDY)
    assert second.context is not None
    assert second.context[: len(first.context)] == first.context
    assert "Paris" in (second.response or "")
    messages = [{"role": "system", "content": BRIEF}, {"role": "user", "content": QUESTION}]
    parts = list(client.chat("smollm2", messages, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == first.response
    assert parts[-1].eval_count == first.eval_count


def test_a_raw_prompt_is_the_same_as_what_the_template_writes(client: ollama.Client):
    whole = client.generate("smollm2", QUESTION, system=BRIEF, options=GREEDY)
    raw = (
        f"<|im_start|>system\n{BRIEF}<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    )
    again = client.generate("smollm2", raw, raw=True, options=GREEDY)
    assert again.response == whole.response
    assert again.prompt_eval_count == whole.prompt_eval_count
    template = (
        "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
        "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n"
    )
    given = client.generate("smollm2", QUESTION, system=BRIEF, template=template, options=GREEDY)
    assert (given.response, given.context) == (whole.response, whole.context)


def test_a_schema(client: ollama.Client):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    answer = client.chat(
        "smollm2",
        [{"role": "user", "content": "Plan a trip to Madrid."}],
        format=schema,
        options={"temperature": 0, "num_predict": 80},
    )
    found = json.loads(answer.message.content or "")
    assert isinstance(found["city"], str)
    assert isinstance(found["days"], int)


def test_vectors(client: ollama.Client):
    vectors = client.embed("smollm2", ["A cat.", "A kitten.", "Tax law."]).embeddings
    assert {len(vector) for vector in vectors} == {576}
