from __future__ import annotations

import json
import threading

import anthropic
import pytest

from caudal.server.limits import ServerLimits
from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve, running_server

BODY = {"model": "fake", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def kind_of(error: anthropic.APIStatusError) -> str:
    body = error.body
    assert isinstance(body, dict)
    assert body["type"] == "error"
    assert body["request_id"] == error.request_id
    kind: str = body["error"]["type"]
    return kind


def test_an_answer_has_a_request_id(hello: RunningServer):
    for path in ("", "/count_tokens"):
        body = {name: value for name, value in BODY.items() if not (path and name == "max_tokens")}
        response = hello.http.post(f"/v1/messages{path}", json=body)
        assert response.headers["request-id"].startswith("req_")
    streamed = hello.http.post("/v1/messages", json=BODY | {"stream": True})
    assert streamed.headers["request-id"].startswith("req_")


def test_versions_are_not_asked_for(hello: RunningServer):
    """Clients name a version, some name betas; what is answered does not depend on them."""
    for headers in ({}, {"anthropic-version": "2023-06-01"}, {"anthropic-beta": "x"}):
        assert hello.http.post("/v1/messages", json=BODY, headers=headers).status_code == 200


def test_either_header_carries_the_key(serve: Serve):
    server = serve(ScriptedExecutor(script=b"!"), api_key="secret")
    for client in (
        server.anthropic("secret"),
        anthropic.Anthropic(base_url=server.url, auth_token="secret", max_retries=0),
    ):
        assert client.messages.create(**BODY).content[0].text == "!"
    with pytest.raises(anthropic.AuthenticationError) as caught:
        server.anthropic("wrong").messages.create(**BODY)
    assert kind_of(caught.value) == "authentication_error"
    assert server.http.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200
    assert server.http.get("/v1/models", headers={"x-api-key": ""}).status_code == 401
    assert server.http.get("/v1/models").json()["error"]["code"] == "invalid_api_key"


def test_no_such_model_or_route(hello: RunningServer):
    with pytest.raises(anthropic.NotFoundError) as caught:
        hello.anthropic().messages.create(**BODY | {"model": "other"})
    assert kind_of(caught.value) == "not_found_error"
    response = hello.http.get("/v1/messages/others")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"
    response = hello.http.get("/v1/messages")
    assert response.status_code == 405
    assert response.json()["error"]["type"] == "invalid_request_error"
    # What is no route of Anthropic's has OpenAI's envelope.
    assert "code" in hello.http.get("/v1/messagesque").json()["error"]


@pytest.mark.parametrize("body", ["{", "", "[]", '{"max_tokens": ' + "9" * 9999 + "}"])
def test_bodies_that_are_none(hello: RunningServer, body: str):
    headers = {"content-type": "application/json"}
    response = hello.http.post("/v1/messages", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_large(hello: RunningServer):
    response = hello.http.post("/v1/messages", content=b" " * (ServerLimits.body_bytes + 1))
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large"


def test_a_prompt_that_is_too_long_gives_both_numbers(hello: RunningServer):
    messages = [{"role": "user", "content": "x" * 1000}]
    for stream in (True, False):
        response = hello.http.post(
            "/v1/messages", json=BODY | {"messages": messages, "stream": stream}
        )
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert "512" in message
        assert "1016" in message


def test_a_full_queue(serve: Serve):
    gate = threading.Event()
    executor = ScriptedExecutor(script=b"x" * 50, gate=gate)
    server = serve(executor, max_num_seqs=1, max_queue=1)
    client = server.anthropic()
    results: list[str] = []

    def ask() -> None:
        try:
            results.append(client.messages.create(**BODY).content[0].text)
        except anthropic.RateLimitError as error:
            assert error.response.headers["retry-after"]
            results.append(kind_of(error))
            gate.set()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "rate_limit_error" in results
    assert "x" * 9 in results


def test_a_model_that_is_still_loading():
    with running_server(None) as server:
        with pytest.raises(anthropic.APIStatusError) as caught:
            server.anthropic().messages.create(**BODY)
        assert caught.value.status_code == 529
        assert kind_of(caught.value) == "overloaded_error"


def fails_after(batches: int) -> ScriptedExecutor:
    """An executor that runs some batches and no more."""
    count = 0

    def fail(_: object) -> None:
        nonlocal count
        count += 1
        if count > batches:
            raise RuntimeError("the model broke")

    return ScriptedExecutor(script=b"x" * 50, fail=fail)


def test_a_model_that_fails(serve: Serve):
    with pytest.raises(anthropic.InternalServerError) as caught:
        serve(fails_after(0)).anthropic().messages.create(**BODY)
    assert kind_of(caught.value) == "api_error"


def test_a_stream_that_fails_ends_with_an_error(serve: Serve):
    response = serve(fails_after(3)).http.post("/v1/messages", json=BODY | {"stream": True})
    assert response.status_code == 200
    *_, last = response.text.strip().split("\n\n")
    name, data = last.split("\n")
    assert name == "event: error"
    error = json.loads(data.removeprefix("data: "))
    assert error["error"]["type"] == "api_error"
    assert error["request_id"] == response.headers["request-id"]
    with (
        pytest.raises(anthropic.APIStatusError),
        serve(fails_after(3)).anthropic().messages.stream(**BODY) as stream,
    ):
        stream.until_done()
