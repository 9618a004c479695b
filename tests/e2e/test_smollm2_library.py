"""The library on a real model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from caudal import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), kv_memory=128 * 2**20) as llm:
        yield llm


def test_prompts_together_get_what_each_gets_alone(llm: LLM):
    prompts = ["The capital of Spain is", "def fibonacci(n):", "Once upon a time", "1, 2, 3,"]
    params = [
        SamplingParams(temperature=0.8, seed=number, max_tokens=24, logprobs=2)
        for number in range(len(prompts))
    ]
    together = llm.generate(prompts, params, use_tqdm=False)
    for prompt, own, result in zip(prompts, params, together, strict=True):
        [alone] = llm.generate(prompt, own, use_tqdm=False)
        assert alone.outputs == result.outputs


def test_chat_and_stream(llm: LLM):
    messages = [{"role": "user", "content": "Who was Albert Einstein?"}]
    params = SamplingParams(temperature=0, max_tokens=24)
    [result] = llm.chat(messages, params, use_tqdm=False)
    assert "physicist" in result.outputs[0].text

    async def read() -> str:
        return "".join([output.text async for output in llm.stream_chat(messages, params)])

    assert asyncio.run(read()) == result.outputs[0].text
