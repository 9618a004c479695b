"""A real server on a real model, asked by the official client."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from support.running_server import metric_value

QUESTIONS = [
    "What is the capital of Spain?",
    "Write a haiku about rivers.",
    "List three prime numbers.",
    "Translate 'good morning' to French.",
    "Why is the sky blue? Explain it to a child of ten years who likes the sea, in simple words.",
    "Continue the alphabet: A B C D",
    "Who wrote Don Quixote?",
    "Count from one to ten.",
]


def ask(client: openai.OpenAI, number: int, **options: Any) -> str:
    """A streamed answer, half of them greedy, half sampled with a seed; of mixed lengths."""
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}],
        max_tokens=8 + 2 * number,
        temperature=0 if number % 2 else 0.9,
        seed=number,
        stream=True,
        **options,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def metric(url: str, sample: str) -> float:
    return metric_value(httpx.get(f"{url}/metrics").text, sample)


def wait_until_idle(url: str) -> None:
    deadline = time.monotonic() + 10
    while metric(url, "caudal_requests_running") or metric(url, "caudal_requests_waiting"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_answers_sensibly(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Who was Albert Einstein?"}],
        temperature=0,
        max_tokens=32,
    )
    assert "physicist" in (answer.choices[0].message.content or "")


def test_sixteen_chats_at_once_get_what_each_gets_alone(client: openai.OpenAI):
    alone = [ask(client, number) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda number: ask(client, number), range(16)))
    assert together == alone
    assert all(alone)


def test_a_second_identical_long_prompt_is_cached(client: openai.OpenAI):
    prompt = " ".join(f"River number {number} flows to the sea." for number in range(60))

    def usage() -> Any:
        return client.completions.create(
            model="smollm2", prompt=prompt, max_tokens=4, temperature=0
        )

    first, second = usage(), usage()
    assert first.usage.prompt_tokens > 300
    assert first.usage.prompt_tokens_details.cached_tokens < 16
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1
    assert second.choices[0].text == first.choices[0].text


def test_killing_half_of_the_clients_frees_their_blocks(client: openai.OpenAI, server_url: str):
    def leave(number: int) -> None:
        body = {
            "model": "smollm2",
            "prompt": f"{number}. Once upon a time",
            "max_tokens": 1500,
            "ignore_eos": True,
            "stream": True,
        }
        with httpx.stream("POST", f"{server_url}/v1/completions", json=body, timeout=60) as stream:
            next(stream.iter_bytes())

    alone = [ask(client, number) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        leaving = [pool.submit(leave, number) for number in range(4)]
        staying = [pool.submit(ask, client, number) for number in range(4)]
        assert [future.result() for future in staying] == alone
        for future in leaving:
            future.result()
    wait_until_idle(server_url)
    assert metric(server_url, 'caudal_kv_blocks{state="used"}') == 0


def test_stop_strings_cut_streams_and_answers_alike(client: openai.OpenAI):
    arguments: dict[str, Any] = {
        "model": "smollm2",
        "prompt": "A B C D E F G H I J K L M",
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = client.completions.create(**arguments).choices[0].text
    stop = whole[5:10]  # straddles tokens, wherever they are
    cut = client.completions.create(**arguments, stop=stop).choices[0]
    streamed = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(**arguments, stop=stop, stream=True)
    )
    assert cut.text == streamed == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_echo_scores_a_text_the_same_whether_read_or_written(client: openai.OpenAI):
    written = client.completions.create(
        model="smollm2", prompt="The quick brown fox", temperature=0, max_tokens=8, logprobs=1
    ).choices[0]
    read = client.completions.create(
        model="smollm2",
        prompt="The quick brown fox" + written.text,
        max_tokens=0,
        echo=True,
        logprobs=1,
    ).choices[0]
    assert read.logprobs is not None
    assert written.logprobs is not None
    assert read.text == "The quick brown fox" + written.text
    assert read.logprobs.tokens is not None
    assert "".join(read.logprobs.tokens) == read.text
    if read.logprobs.tokens[-8:] == written.logprobs.tokens:
        assert read.logprobs.token_logprobs is not None
        assert read.logprobs.token_logprobs[-8:] == written.logprobs.token_logprobs


def test_text_in_many_scripts_survives_the_round_trip(client: openai.OpenAI, server_url: str):
    text = "¿Qué tal? 日本語 🦙🚀 <|im_start|>"
    tokens = httpx.post(f"{server_url}/tokenize", json={"model": "smollm2", "prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"])
    back = httpx.post(f"{server_url}/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert back == {"prompt": text, "content": text}


def test_a_prompt_longer_than_the_context(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="smollm2", prompt=[1] * 100_000, stream=True)
    assert refused.value.code == "context_length_exceeded"
    assert "100000" in refused.value.message


def test_what_is_served_says_how(client: openai.OpenAI, server_url: str):
    [model] = client.models.list().data
    card = httpx.get(f"{server_url}/v1/models/{model.id}").json()
    assert card["id"] == "smollm2"
    assert card["facts"]["architecture"] == "llama"
    assert "Q4_1" in card["facts"]["tensors"]
