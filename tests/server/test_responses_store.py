from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from caudal.server.openai.responses_store import ResponseStore, StoredResponse
from caudal.server.openai.unknown import UnknownResponseError
from support.running_server import RunningServer

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Jaén"}}</tool_call>'
WHOLE = f"<think>Hm.</think>Let me look.{CALL}"
WEATHER: Any = {"type": "function", "name": "weather", "parameters": None, "strict": None}

Converse = Callable[..., RunningServer]


def stored(identity: str, text: str = "") -> StoredResponse:
    return StoredResponse({"id": identity, "output": [text]}, [])


def test_the_least_used_make_room():
    store = ResponseStore(max_responses=2)
    store.add(stored("a"))
    store.add(stored("b"))
    store.get("a")
    store.add(stored("c"))
    with pytest.raises(UnknownResponseError):
        store.get("b")
    assert store.get("a").response["id"] == "a"
    assert len(store) == 2


def test_bytes_are_bounded():
    store = ResponseStore(max_bytes=10_000)
    for number in range(100):
        store.add(stored(f"{number}", "x" * 1000))
        assert len(store) <= 8
    assert store.get("99")
    store.add(stored("large", "x" * 10_000))
    assert len(store) == 0
    store.add(stored("small"))
    store.delete("small")
    for number in range(6):
        store.add(stored(f"{number}", "x" * 1000))
    assert len(store) == 6


def test_a_conversation_goes_on(converse: Converse):
    client = converse(WHOLE).openai()
    first = client.responses.create(model="fake", input="Hi", tools=[WEATHER], instructions="Be")
    call = first.output[-1]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = client.responses.create(
        model="fake", input=[result], previous_response_id=first.id, tools=[WEATHER]
    )
    assert second.previous_response_id == first.id
    # Instructions are not carried over; otherwise it is as if the client had sent everything.
    by_hand = client.responses.create(
        model="fake",
        input=[{"role": "user", "content": "Hi"}, *first.output, result],  # type: ignore[list-item]
        tools=[WEATHER],
    )
    assert second.usage is not None
    assert by_hand.usage is not None
    assert second.usage.input_tokens == by_hand.usage.input_tokens
    assert by_hand.usage.input_tokens_details.cached_tokens == by_hand.usage.input_tokens - 1

    assert client.responses.retrieve(second.id) == second
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    kinds = ["message", "reasoning", "message", "function_call", "function_call_output"]
    assert [item.type for item in items] == kinds
    newest_first = list(client.responses.input_items.list(second.id))
    assert [item.id for item in newest_first] == [item.id for item in items][::-1]
    rest = client.responses.input_items.list(second.id, order="asc", after=items[3].id or "")
    assert [item.type for item in rest.data] == ["function_call_output"]

    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    assert len(list(client.responses.input_items.list(second.id))) == 5


def test_a_streamed_response_is_stored_when_its_end_is_sent(converse: Converse):
    client = converse("Yes.").openai()
    for event in client.responses.create(model="fake", input="Hi", stream=True):
        if event.type == "response.completed":
            again = client.responses.retrieve(event.response.id)
            assert again.output_text == "Yes."
            break
    else:
        pytest.fail("the stream had no end")


def test_what_is_not_stored(converse: Converse):
    client = converse("Yes.").openai()
    response = client.responses.create(model="fake", input="Hi", store=False)
    assert response.model_extra == {"store": False}
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="fake", input="Hi", previous_response_id=response.id)
    assert caught.value.param == "previous_response_id"


def test_what_the_store_refuses(converse: Converse):
    server = converse("Yes.")
    response = server.openai().responses.create(model="fake", input="Hi")
    path = f"/v1/responses/{response.id}"
    for query, param in [
        ("?stream=true", "stream"),
        ("?include[]=x", "include"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=x", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=x", "after"),
        ("/input_items?include[]=x", "include"),
    ]:
        answer = server.http.get(path + query)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    answer = server.http.post(f"{path}/cancel")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_id")
    assert server.http.post("/v1/responses/resp_x/cancel").status_code == 404
    assert server.http.post("/v1/responses/compact", json={}).status_code == 404
