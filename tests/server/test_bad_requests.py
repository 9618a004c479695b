"""Every bad request is refused in OpenAI's envelope, naming the field, before anything runs."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "fake", "prompt": "Hi"}


def refused(
    server: RunningServer, path: str, body: dict[str, Any], status: int = 400
) -> dict[str, Any]:
    response = server.http.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert response.headers["content-type"] == "application/json"
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "warm"),
        ("temperature", True),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2),
        ("typical_p", 0),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("n", 0),
        ("n", 1000),
        ("n", 9),  # more than run at once
        ("max_tokens", -2),
        ("top_p", -0.5),
        ("max_tokens", 1.5),
        ("min_tokens", -1),
        ("seed", "x"),
        ("seed", 2**70),
        ("stop", [""]),
        ("stop", 7),
        ("stop", ["x"] * 65),
        ("stop_token_ids", [100_000]),
        ("stop_token_ids", [-1]),
        ("logit_bias", {"100000": 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", [1]),
        ("priority", "high"),
        ("priority", 10**400),
        ("top_k", 10**30),
    ],
)
def test_values_out_of_range(hello: RunningServer, field: str, value: object, stream: bool):
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        error = refused(hello, path, {**body, field: value, "stream": stream})
        assert error["param"] == field or error["param"].startswith(f"{field}[")
        assert field in error["message"]
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none(hello: RunningServer, value: str):
    body = f'{{"model": "fake", "prompt": "Hi", "temperature": {value}}}'
    response = hello.http.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
        ("moderation", {"model": "x"}),
        ("documents", [{"text": "x"}]),
        ("best_of", 2),
        ("use_beam_search", True),
        ("mirostat", 2),
        ("dry_multiplier", 0.8),
        ("xtc_probability", 0.5),
        ("truncate_prompt_tokens", 5),
    ],
)
def test_what_is_not_offered_is_refused_by_name(hello: RunningServer, field: str, value: object):
    error = refused(hello, "/v1/chat/completions", {**CHAT, field: value})
    assert error["param"] == field
    assert error["message"] == f"{field} is not supported by this server."


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("functions", [{"name": "f"}], "tools"),
        ("function_call", "auto", "tool_choice"),
        ("guided_json", {}, "structured_outputs.json"),
        ("guided_regex", "a", "structured_outputs.regex"),
        ("guided_choice", ["a"], "structured_outputs.choice"),
        ("guided_grammar", "root ::= [a]", "structured_outputs.grammar"),
    ],
)
def test_what_is_out_of_use_is_refused_with_what_took_its_place(
    hello: RunningServer, field: str, value: object, instead: str
):
    error = refused(hello, "/v1/chat/completions", {**CHAT, field: value})
    assert error["param"] == field
    assert error["message"] == f"{field} is not supported by this server. Use {instead} instead."


@pytest.mark.parametrize(("field", "value"), [("best_of", 2), ("suffix", "end")])
def test_what_text_completions_do_not_offer(hello: RunningServer, field: str, value: object):
    assert refused(hello, "/v1/completions", {**TEXT, field: value})["param"] == field


def test_what_asks_for_nothing_passes(hello: RunningServer):
    trivial = {
        "tools": None,
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "store": False,
        "service_tier": "auto",
    }
    assert hello.http.post("/v1/chat/completions", json=CHAT | trivial).status_code == 200
    more = {"best_of": 1, "suffix": None}
    assert hello.http.post("/v1/completions", json=TEXT | more).status_code == 200


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([], "messages", "at least 1"),
        ("Hi", "messages", "list"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role", "'user'"),
        ([{"role": "function", "content": "x", "name": "f"}], "messages[0].role", "'tool'"),
        ([{"role": "tool", "content": "x"}], "messages[0]", "tool_call_id"),
        ([{"role": "user", "content": "x", "tool_call_id": "1"}], "messages[0]", "tool_call_id"),
        ([{"role": "user", "content": "x", "reasoning": "y"}], "messages[0]", "reasoning"),
        ([{"role": "user"}], "messages[0]", "needs content"),
        ([{"content": "x"}], "messages[0].role", "required"),
        ([{"role": "user", "content": 7}], "messages[0].content", "string"),
        ([{"role": "user", "contents": "x"}], "messages[0].contents", "mean messages[0].content?"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0]",
            "image_url",
        ),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
            "messages[0].tool_calls[0].function",
            "required",
        ),
    ],
)
def test_messages(hello: RunningServer, messages: object, param: str, words: str):
    error = refused(hello, "/v1/chat/completions", {"model": "fake", "messages": messages})
    assert error["param"].startswith(param)
    assert words in error["message"]


@pytest.mark.parametrize("prompt", [None, 7, [], {}, [[]], [1, "a"], ["a", [1]], [1.5], [True]])
def test_prompts_of_another_shape(hello: RunningServer, prompt: object):
    error = refused(hello, "/v1/completions", {"model": "fake", "prompt": prompt})
    assert error["param"] == "prompt"


@pytest.mark.parametrize("prompt", [[100_000], [-1], [[1], [100_000]], ""])
def test_prompts_that_the_model_cannot_take(hello: RunningServer, prompt: object):
    error = refused(hello, "/v1/completions", {"model": "fake", "prompt": prompt})
    assert error["param"] == "prompt"
    assert hello.model.parts.engine.stats().running == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_gives_both_numbers(hello: RunningServer, stream: bool):
    long = "x" * 600
    chat = {"model": "fake", "messages": [{"role": "user", "content": long}], "stream": stream}
    error = refused(hello, "/v1/chat/completions", chat)
    assert error["param"] == "messages"
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert str(600 + len("user:\nassistant:")) in error["message"]
    error = refused(hello, "/v1/completions", {"model": "fake", "prompt": long, "stream": stream})
    assert error["param"] == "prompt"
    assert "512" in error["message"]
    assert "600" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_fields_that_contradict_each_other(
    hello: RunningServer, fields: dict[str, object], param: str
):
    assert refused(hello, "/v1/chat/completions", CHAT | fields)["param"] == param


def test_no_new_tokens_and_no_echo(hello: RunningServer):
    assert refused(hello, "/v1/completions", {**TEXT, "max_tokens": 0})["param"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_a_template_refuses_in_its_own_words(hello: RunningServer, stream: bool):
    messages = [{"role": "system", "content": "x"}, *CHAT["messages"]]
    body = {"model": "fake", "messages": messages, "stream": stream}
    error = refused(hello, "/v1/chat/completions", body)
    assert error["message"] == "System role not supported"
    assert error["param"] == "messages"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_unknown_models(hello: RunningServer, path: str):
    body = (CHAT if "chat" in path else TEXT) | {"model": "gpt-9"}
    error = refused(hello, path, body, 404)
    assert error["code"] == "model_not_found"
    assert "gpt-9" in error["message"]
    assert "fake" in error["message"]


def test_the_official_client_raises_its_own_errors(hello: RunningServer):
    client = hello.openai()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="fake", prompt="x", temperature=-1)
    assert bad.value.param == "temperature"


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'"x"', b"\xff", b'{"model": "a"' * 3])
def test_bodies_that_are_no_object(hello: RunningServer, body: bytes):
    response = hello.http.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert "body" in response.json()["error"]["message"].lower()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[]", "body: input should be an object."),
        (b'{"model": "\xff"}', "The body is not valid JSON: it is not UTF-8."),
        (b"[" * 200_000, "The body has 200000 levels of nesting, but may have 256."),
        (b"1" * 5000, "The body is not valid JSON: it has an integer of too many digits."),
        (b'{"model": "fake",}', "The body is not valid JSON: Expecting property name"),
        (b'{"model": "fake", "prompt": "x", "logit_bias": []}', "logit_bias: input should be an o"),
    ],
    ids=["list", "latin-1", "deep", "long integer", "comma", "field"],
)
def test_what_is_wrong_with_a_body(hello: RunningServer, body: bytes, message: str):
    response = hello.http.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize(
    ("fields", "status"),
    [(r'"\ud800": 1', 400), (r'"model": "\ud800"', 404), (r'"logit_bias": {"\ud800": 1}', 400)],
)
def test_half_a_surrogate_pair_is_no_text(hello: RunningServer, fields: str, status: int):
    body = '{"model": "fake", "prompt": "x", ' + fields + "}"
    headers = {"content-type": "application/json"}
    response = hello.http.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == status
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("stream", ["false", "true"])
def test_half_a_surrogate_pair_in_a_prompt_is_echoed_as_it_came(hello: RunningServer, stream: str):
    body = r'{"model": "fake", "prompt": "\ud800", "echo": true, "stream": ' + stream + "}"
    headers = {"content-type": "application/json"}
    response = hello.http.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 200
    assert r"\ud800" in response.text


def test_deeply_nested_json(hello: RunningServer):
    body = b'{"model": "fake", "prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    response = hello.http.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_does_not_say_it_is_json(hello: RunningServer, kind: str | None):
    body = b'{"model": "fake", "prompt": "x"}'
    headers = {} if kind is None else {"content-type": kind}
    response = hello.http.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 400
    assert "Content-Type: application/json" in response.json()["error"]["message"]


def test_bodies_that_are_too_large(hello: RunningServer):
    response = hello.http.post("/v1/completions", content=b" " * (33 * 2**20))
    assert response.status_code == 413

    def chunks():
        for _ in range(33):
            yield b" " * 2**20

    json_type = {"content-type": "application/json"}
    response = hello.http.post("/v1/completions", content=chunks(), headers=json_type)
    assert response.status_code == 413
    assert "limit" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_text_that_cannot_fit_is_not_even_tokenised(
    hello: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str
):
    def encode(*args: object, **options: object) -> list[int]:
        pytest.fail("it was tokenised")

    for part in (hello.model.parts.tokenizer, hello.model.parts.chat.template):
        monkeypatch.setattr(part, "encode", encode)
    text = "x" * (2**20 + 1)
    body = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    error = refused(hello, path, {"model": "fake", **body})
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert "at least 149797 tokens" in error["message"]  # if all were the longest
    assert error["param"] in body


def test_more_messages_than_the_context_has_tokens(hello: RunningServer):
    messages = [{"role": "user", "content": ""}] * 513
    error = refused(hello, "/v1/chat/completions", {"model": "fake", "messages": messages})
    assert error["code"] == "context_length_exceeded"
    assert "at least 513 tokens" in error["message"]
    assert error["param"] == "messages"


def test_more_tokens_than_are_worth_decoding(hello: RunningServer):
    error = refused(hello, "/detokenize", {"tokens": [65] * (2**18 + 1)})
    assert error["param"] == "tokens"
    assert "262145 ids" in error["message"]


def test_more_prompts_than_can_ever_wait(serve: Serve):
    server = serve(ScriptedExecutor(script=b"x"), max_queue=2, max_num_seqs=3)
    for prompts in ([], ["x"] * 6):
        error = refused(server, "/v1/completions", {"model": "fake", "prompt": prompts})
        assert error["param"] == "prompt"
    assert "at most 5" in error["message"]
    response = server.http.post("/v1/completions", json={"model": "fake", "prompt": ["x"] * 5})
    assert response.status_code == 200


def test_routes_and_methods_that_do_not_exist(hello: RunningServer):
    response = hello.http.get("/v1/nothing")
    assert response.status_code == 404
    assert "/v1/nothing" in response.json()["error"]["message"]
    response = hello.http.get("/v1/completions")
    assert response.status_code == 405
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.headers["allow"] == "POST"
    assert hello.http.post("/v1/models").headers["allow"] == "GET, HEAD"


def test_a_list_that_is_too_short_is_said_in_words_for_clients(hello: RunningServer):
    error = refused(hello, "/v1/chat/completions", {**CHAT, "messages": []})
    assert error["message"] == "messages: list should have at least 1 item, not 0."


def test_detokenize_refuses_unknown_ids(hello: RunningServer):
    error = refused(hello, "/detokenize", {"tokens": [1, 100_000]})
    assert error["param"] == "tokens"
    assert "100000" in error["message"]
