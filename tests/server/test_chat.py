from __future__ import annotations

import json
import threading

import openai
import pytest

from support.fake_model import ScriptedExecutor, word
from support.running_server import RunningServer, Serve

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_answers_as_the_official_client_expects(hello: RunningServer):
    answer = hello.openai().chat.completions.create(
        model="fake", messages=MESSAGES, metadata={"trace": "7"}, user="ana"
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "fake"
    assert answer.metadata == {"trace": "7"}
    assert answer.system_fingerprint is not None
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "Hello, día!"
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user:Hi\nassistant:")
    assert answer.usage.completion_tokens == len("Hello, día!".encode()) + 1
    assert answer.usage.total_tokens == (
        answer.usage.prompt_tokens + answer.usage.completion_tokens
    )


def test_streams_what_it_answers(hello: RunningServer):
    chunks = list(
        hello.openai().chat.completions.create(
            model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    *answer, last = chunks
    assert [chunk.choices[0].delta.role for chunk in answer] == (
        ["assistant"] + [None] * (len(answer) - 1)
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    assert text == "Hello, día!"
    assert [chunk.choices[0].finish_reason for chunk in answer] == (
        [None] * (len(answer) - 1) + ["stop"]
    )
    assert all(chunk.usage is None for chunk in answer)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len("Hello, día!".encode()) + 1
    assert len({(chunk.id, chunk.created, chunk.system_fingerprint) for chunk in chunks}) == 1


def test_the_bytes_of_a_stream(hello: RunningServer):
    body = {"model": "fake", "messages": MESSAGES, "stream": True, "max_tokens": 2}
    response = hello.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "H"},
        {"content": "e"},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all("usage" not in chunk for chunk in chunks)


def test_several_choices(hello: RunningServer):
    answer = hello.openai().chat.completions.create(model="fake", messages=MESSAGES, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"Hello, día!"}
    roles: dict[int, int] = {}
    for chunk in hello.openai().chat.completions.create(
        model="fake", messages=MESSAGES, n=3, stream=True
    ):
        [choice] = chunk.choices
        roles[choice.index] = roles.get(choice.index, 0) + (choice.delta.role is not None)
    assert roles == {0: 1, 1: 1, 2: 1}


def test_log_probabilities_are_those_of_the_text(hello: RunningServer):
    answer = hello.openai().chat.completions.create(
        model="fake", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert bytes(b for token in logprobs.content for b in token.bytes or []) == (
        "Hello, día!".encode()
    )
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content)
    streamed = [
        token
        for chunk in hello.openai().chat.completions.create(
            model="fake", messages=MESSAGES, logprobs=True, top_logprobs=2, stream=True
        )
        for token in chunk.choices[0].logprobs.content  # type: ignore[union-attr]
    ]
    assert streamed == logprobs.content


@pytest.mark.parametrize("stop", ["O P Q", ["zzz", "P Q"], "M N O P Q R"])
def test_stop_strings_cut_both_kinds_of_answer_alike(serve: Serve, stop: str | list[str]):
    server = serve(ScriptedExecutor(script=[*b"L M N ", word("O P Q"), *b" R S ST"]))
    client = server.openai()
    whole = client.chat.completions.create(model="fake", messages=MESSAGES, stop=stop)
    streamed = list(
        client.chat.completions.create(model="fake", messages=MESSAGES, stop=stop, stream=True)
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    first = stop if isinstance(stop, str) else stop[-1]
    assert whole.choices[0].message.content == text == "L M N O P Q R S ST".split(first)[0]
    assert whole.choices[0].finish_reason == "stop"
    assert streamed[-1].choices[0].finish_reason == "stop"


def test_a_second_identical_prompt_is_cached(serve: Serve):
    client = serve(ScriptedExecutor(script=b"ok")).openai()
    long = [{"role": "user", "content": "word " * 60}]
    first, second = (
        client.chat.completions.create(model="fake", messages=long).usage for _ in range(2)
    )
    assert first is not None
    assert second is not None
    assert first.prompt_tokens_details is not None
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details is not None
    assert second.prompt_tokens_details.cached_tokens == second.prompt_tokens - 1


def test_a_cache_salt_keeps_prompts_apart(serve: Serve):
    client = serve(ScriptedExecutor(script=b"ok")).openai()
    for salt in ("a", "b"):
        answer = client.chat.completions.create(
            model="fake", messages=MESSAGES * 9, extra_body={"cache_salt": salt}
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_text_parts_and_developer_messages(hello: RunningServer):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    client = hello.openai()
    answer = client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": parts}]
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user:Hello\nassistant:")
    with pytest.raises(openai.BadRequestError, match="System role not supported"):
        client.chat.completions.create(
            model="fake", messages=[{"role": "developer", "content": "Be kind."}, *MESSAGES]
        )


def test_an_answer_can_be_sent_back_as_it_came(hello: RunningServer):
    client = hello.openai()
    message = client.chat.completions.create(model="fake", messages=MESSAGES).choices[0].message
    answer = client.chat.completions.create(model="fake", messages=[*MESSAGES, message, *MESSAGES])
    assert answer.choices[0].message.content == "Hello, día!"


def test_the_last_message_can_be_continued(hello: RunningServer):
    client = hello.openai()
    messages = [*MESSAGES, {"role": "assistant", "content": "Well,"}]
    answer = client.chat.completions.create(
        model="fake", messages=messages, extra_body={"continue_final_message": True}
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user:Hi\nassistant:Well,")
    with pytest.raises(openai.BadRequestError, match="exclude each other"):
        client.chat.completions.create(
            model="fake",
            messages=messages,
            extra_body={"continue_final_message": True, "add_generation_prompt": True},
        )
    with pytest.raises(openai.BadRequestError, match="last message"):
        client.chat.completions.create(
            model="fake", messages=MESSAGES, extra_body={"continue_final_message": True}
        )


def test_the_samplers_extras_reach_the_engine(serve: Serve):
    client = serve(ScriptedExecutor(script=b"abcdef")).openai()

    def ask(**extra: object) -> str | None:
        choice = client.chat.completions.create(
            model="fake", messages=MESSAGES, max_tokens=8, extra_body=extra
        ).choices[0]
        return choice.message.content

    assert ask(stop_token_ids=[ord("d")]) == "abc"
    assert ask(ignore_eos=True) == "abcdef"
    assert ask(ignore_eos=True, skip_special_tokens=False) == "abcdef<|end|><|end|>"
    assert ask(min_tokens=8) == "abcdef.."
    assert ask(stop="c", include_stop_str_in_output=True) == "abc"


def test_a_full_queue_is_429_with_a_time_to_retry(serve: Serve):
    gate = threading.Event()
    executor = ScriptedExecutor(script=b"ok", gate=gate)
    server = serve(executor, max_queue=0, max_num_seqs=1)
    body = {"model": "fake", "messages": MESSAGES, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as running:
        assert executor.entered.wait(10)
        refused = server.http.post("/v1/chat/completions", json=body)
        gate.set()
        assert "[DONE]" in "".join(running.iter_text())
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"
