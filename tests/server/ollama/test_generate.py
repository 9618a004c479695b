"""`/api/generate`, as Ollama's official client asks and reads it."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

import ollama
import pytest

from caudal.chat.conversation import Message
from caudal.chat.packaged import Opening
from caudal.chat.preparer import ChatPreparer
from caudal.formats.fill_tokens import FillTokens
from support.fake_model import (
    END,
    ByteTokenizer,
    RoleTemplate,
    ScriptedExecutor,
    changed,
    serve_fake,
)
from support.running_server import RunningServer, Serve, running_server

DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def generate(server: RunningServer, prompt: str = "Hi", **fields: Any) -> ollama.GenerateResponse:
    return ollama.Client(server.url).generate("fake", prompt, **fields)


def raw_lines(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    response = server.http.post("/api/generate", json={"model": "fake", "prompt": "Hi"} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_whole(hello: RunningServer):
    answer = generate(hello)
    assert (answer.model, answer.response, answer.thinking) == ("fake", "Hello, día!", None)
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.prompt_eval_count == len("user:Hi\nassistant:")
    assert answer.eval_count == len("Hello, día!".encode()) + 1
    assert answer.context is not None
    assert bytes(answer.context[:-1]).decode() == "user:Hi\nassistant:Hello, día!"
    assert answer.context[-1] == END
    spans = [getattr(answer, name) for name in DURATIONS]
    assert all(type(span) is int and span > 0 for span in spans)
    assert sum(spans[1:]) <= spans[0]


def test_lines_in_order(hello: RunningServer):
    *lines, last = raw_lines(hello)
    assert [list(line) for line in lines] == [["model", "created_at", "response", "done"]] * 11
    assert "".join(line["response"] for line in lines) == "Hello, día!"
    assert not any(line["done"] for line in lines)
    assert list(last) == [
        "model",
        "created_at",
        "response",
        "done",
        "done_reason",
        "context",
        "total_duration",
        "load_duration",
        "prompt_eval_count",
        "prompt_eval_duration",
        "eval_count",
        "eval_duration",
    ]
    assert last["response"] == ""
    made = [datetime.fromisoformat(line["created_at"]) for line in [*lines, last]]
    assert made == sorted(made)
    assert last["created_at"].endswith("Z")


def test_both_clients_stream(hello: RunningServer):
    parts = list(ollama.Client(hello.url).generate("fake", "Hi", stream=True))
    assert "".join(part.response or "" for part in parts) == "Hello, día!"
    assert [part.done_reason for part in parts[-2:]] == [None, "stop"]

    async def read() -> str:
        stream = await ollama.AsyncClient(hello.url).generate("fake", "Hi", stream=True)
        return "".join([part.response or "" async for part in stream])

    assert asyncio.run(read()) == "Hello, día!"


def test_a_conversation_goes_on_from_its_context(serve: Serve):
    whole = b"user:Hi\nassistant:Ahuser:And?\nassistant:"
    server = serve(ScriptedExecutor(script=b"Ah", by_prompt={whole: b"No more."}))
    context = generate(server).context
    assert context is not None
    assert context.pop() == END
    again = generate(server, "And?", context=context)
    assert (again.response, again.prompt_eval_count) == ("No more.", len(whole))
    with pytest.raises(ollama.ResponseError, match="maximum context length"):
        generate(server, "And?", context=[65] * 600)
    with pytest.raises(ollama.ResponseError, match="token id"):
        generate(server, "And?", context=[-1])


def test_what_all_conversations_begin_with_is_not_said_again():
    template: Any = RoleTemplate()
    tokenizer: Any = ByteTokenizer()
    opening = Opening(messages=[Message(role="user", content="Yo")])
    chat = ChatPreparer(template, tokenizer, opening=opening)
    with running_server(changed(serve_fake(ScriptedExecutor(script=b"x")), chat=chat)) as server:
        answer = generate(server)
        again = generate(server, "And?", context=answer.context)
    assert answer.prompt_eval_count == len("user:Yo\nuser:Hi\nassistant:")
    before = len(answer.context or ())
    assert again.prompt_eval_count == before + len("user:And?\nassistant:")


def test_raw_prompts_are_all_that_the_model_gets(serve: Serve):
    executor = ScriptedExecutor(script=b"no", by_prompt={b"as it is": b"yes"})
    server = serve(executor)
    answer = generate(server, "as it is", raw=True)
    assert (answer.response, answer.context, answer.prompt_eval_count) == ("yes", None, 8)
    with pytest.raises(ollama.ResponseError, match="raw mode does not support") as caught:
        generate(server, "as it is", raw=True, system="x")
    assert caught.value.status_code == 400


def test_a_gap_is_filled_by_models_that_can(serve: Serve, hello: RunningServer):
    tokenizer = ByteTokenizer()
    tokenizer.fill_tokens = FillTokens(1, 2, 3)
    asked = b"\x01def f():\n\x02return x\x03"
    executor = ScriptedExecutor(script=b"no", by_prompt={asked: b"x = 1\n"})
    answer = generate(serve(executor, tokenizer=tokenizer), "def f():\n", suffix="return x")
    assert answer.response == "x = 1\n"
    assert answer.context == [*asked, *b"x = 1\n", END]
    with pytest.raises(ollama.ResponseError, match='"fake" does not support insert') as caught:
        generate(hello, "def f():\n", suffix="return x")
    assert caught.value.status_code == 400


def test_options(serve: Serve):
    server = serve(ScriptedExecutor(script=b"one two STOP three"))
    cut = generate(server, options={"num_predict": 5.0, "seed": 3, "num_ctx": 0})
    assert (cut.response, cut.done_reason, cut.eval_count) == ("one t", "length", 5)
    stopped = generate(server, options={"stop": ["STOP"], "num_predict": -2})
    assert (stopped.response, stopped.done_reason) == ("one two ", "stop")
    in_context = generate(server, options=ollama.Options(num_ctx=25))
    assert (in_context.response, in_context.done_reason) == ("one two", "length")
    # What was stopped is left out of the context too, though it was computed.
    assert stopped.context is not None
    assert bytes(stopped.context).endswith(b"one two ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"num_gpu": True}, 'option "num_gpu" must be of type integer'),
        ({"top_k": 1.5}, 'option "top_k" must be of type integer'),
        ({"stop": "x"}, 'option "stop" must be of type array'),
        ({"stop": [1]}, 'option "stop" must be of an array of strings'),
        ({"temperature": -1}, "options.temperature must be in"),
        ({"presence_penalty": 3}, "options.presence_penalty must be in"),
        ({"mirostat": 2}, "options.mirostat is not supported by this server."),
        ({"temprature": 1}, "Did you mean options.temperature?"),
        ({"num_ctx": 18}, "options.num_ctx is 18 tokens, but your prompt has 18"),
    ],
)
def test_options_that_are_refused_by_name(hello: RunningServer, options: dict[str, Any], says: str):
    with pytest.raises(ollama.ResponseError) as caught:
        generate(hello, options=options)
    assert caught.value.status_code == 400
    assert says in caught.value.error


def test_options_that_only_hint_are_named(hello: RunningServer):
    options = {
        "num_gpu": 99,
        "num_thread": 8,
        "num_keep": 5,
        "mirostat": 0,
        "num_batch": 512,
        "repeat_last_n": 33,
        "repeat_penalty": 1.2,
        "num_ctx": 4096,
    }
    body = {"model": "fake", "prompt": "Hi", "options": options, "stream": False, "shift": True}
    response = hello.http.post("/api/generate", json=body)
    ignored = "shift, options.num_gpu, options.num_thread, options.num_keep"
    assert (
        response.headers["x-caudal-ignored"] == f"{ignored}, options.repeat_last_n, options.num_ctx"
    )


@pytest.mark.parametrize("form", ["json", {"type": "object", "properties": {}}])
def test_forms(serve: Serve, hello: RunningServer, form: Any):
    server = serve(ScriptedExecutor(script=b'{"a": 1} I hope'))
    assert generate(server, format=form).response == '{"a": 1}'
    with pytest.raises(ollama.ResponseError, match="format"):
        generate(hello, format={"type": "nonsense"})
    assert (
        hello.http.post("/api/generate", json={"model": "fake", "prompt": "Hi", "format": "xml"})
        .json()["error"]
        .startswith("format: ")
    )


def test_probabilities(hello: RunningServer):
    answer = generate(hello, logprobs=True, top_logprobs=2, options={"num_predict": 3})
    assert answer.logprobs is not None
    assert [each.token for each in answer.logprobs] == ["H", "e", "l"]
    assert all(each.top_logprobs and len(each.top_logprobs) == 2 for each in answer.logprobs)
    streamed = raw_lines(hello, logprobs=True, options={"num_predict": 3})
    found = [entry for line in streamed for entry in line.get("logprobs", ())]
    assert [entry["bytes"] for entry in found] == [[72], [101], [108]]
    assert not any("top_logprobs" in entry for entry in found)
    with pytest.raises(ollama.ResponseError, match="top_logprobs"):
        generate(hello, logprobs=True, top_logprobs=21)


def test_what_isnt_offered(hello: RunningServer):
    for fields, says in (
        ({"images": ["aGk="]}, "images is not supported"),
        ({"think": True}, '"fake" does not support thinking'),
        ({"think": "high"}, '"fake" does not support thinking'),
        ({"template": "{{ .Prompt }}"}, "template is not taken from requests"),
        ({"system": "Be brief."}, "System role not supported"),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            generate(hello, **fields)
        assert (caught.value.status_code, says in caught.value.error) == (400, True), says
    assert generate(hello, think=False).response == "Hello, día!"


def test_loading_and_unloading(hello: RunningServer):
    loaded = generate(hello, "")
    assert (loaded.response, loaded.done, loaded.done_reason) == ("", True, "load")
    assert loaded.total_duration is None
    [line] = ollama.Client(hello.url).generate("fake", stream=True, keep_alive="10m")
    assert line.done_reason == "load"
    with pytest.raises(ollama.ResponseError, match="stays as long as the server does"):
        generate(hello, "", keep_alive=0)


def test_models_that_arent_there(hello: RunningServer):
    with pytest.raises(ollama.ResponseError) as caught:
        ollama.Client(hello.url).generate("other:7b", "Hi")
    assert (caught.value.status_code, caught.value.error) == (404, "model 'other:7b' not found")
    response = hello.http.post("/api/generate", json={"prompt": "Hi"})
    assert (response.status_code, response.json()) == (400, {"error": "model is required"})


def test_bodies_need_no_content_type_unless_a_page_sends_them(hello: RunningServer):
    body = b'{"model": "fake", "prompt": "Hi", "stream": false}'
    headers = {"content-type": "application/x-www-form-urlencoded"}  # what curl says
    response = hello.http.post("/api/generate", content=body, headers=headers)
    assert response.json()["response"] == "Hello, día!"
    for mark in ({"origin": "https://example.org"}, {"sec-fetch-site": "cross-site"}):
        refused = hello.http.post("/api/generate", content=body, headers=headers | mark)
        assert refused.status_code == 400
    assert hello.http.post("/v1/chat/completions", content=body, headers=headers).status_code == 400
