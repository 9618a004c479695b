from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import openai
import pytest

from caudal.errors import QueueFullError
from caudal.server.openai.responses_background import (
    MAX_REMEMBERED,
    BackgroundRun,
    BackgroundRuns,
)
from support.fake_model import ScriptedExecutor
from support.gate import Gate
from support.running_server import RunningServer, Serve

Converse = Callable[..., RunningServer]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_answer_goes_on_without_its_client(serve: Serve, gate: Gate):
    client = serve(ScriptedExecutor(script=b"Hello!", fail=gate)).openai()
    response = client.responses.create(model="fake", input="Hi", background=True)
    assert response.background is True
    assert response.status == "queued"
    assert client.responses.retrieve(response.id).status in ("queued", "in_progress")
    gate.open()
    until(lambda: client.responses.retrieve(response.id).status == "completed")
    whole = client.responses.retrieve(response.id)
    assert whole.output_text == "Hello!"
    assert whole.usage is not None
    assert client.responses.cancel(response.id) == whole  # too late
    items = client.responses.input_items.list(response.id)
    assert [item.type for item in items] == ["message"]
    again = client.responses.create(model="fake", input="Hi", previous_response_id=response.id)
    assert again.usage is not None
    assert again.usage.input_tokens > whole.usage.input_tokens


def test_a_response_can_be_cancelled(serve: Serve, gate: Gate):
    server = serve(ScriptedExecutor(script=b"x" * 400, fail=gate))
    client = server.openai()
    response = client.responses.create(model="fake", input="Hi", background=True)
    threading.Timer(0.2, gate.open).start()
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"
    server.wait_for_metric('caudal_kv_blocks{state="used"}', 0)


def test_a_stream_can_be_left_and_come_back_to(converse: Converse):
    client = converse("<think>Hm.</think>Hello, world!").openai()
    events = []
    for event in client.responses.create(model="fake", input="Hi", background=True, stream=True):
        events.append(event)
        if event.type == "response.output_text.delta":
            break
    kinds = [event.type for event in events[:3]]
    assert kinds == ["response.created", "response.queued", "response.in_progress"]
    identity = events[0].response.id  # type: ignore[union-attr]
    last = events[-1].sequence_number
    rest = list(client.responses.retrieve(identity, stream=True, starting_after=last))
    numbers = [event.sequence_number for event in [*events, *rest]]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type == "response.completed"
    text = "".join(
        event.delta for event in [*events, *rest] if event.type == "response.output_text.delta"
    )
    assert text == "Hello, world!"
    assert rest[-1].response == client.responses.retrieve(identity)


def test_a_response_that_fails_says_so(serve: Serve):
    def fail(_: object) -> None:
        raise RuntimeError("the model broke")

    client = serve(ScriptedExecutor(script=b"x", fail=fail)).openai()
    response = client.responses.create(model="fake", input="Hi", background=True)
    until(lambda: client.responses.retrieve(response.id).status == "failed")
    error = client.responses.retrieve(response.id).error
    assert error is not None
    assert error.code == "server_error"


def test_what_is_deleted_ends(serve: Serve, gate: Gate):
    server = serve(ScriptedExecutor(script=b"x" * 400, fail=gate))
    client = server.openai()
    response = client.responses.create(model="fake", input="Hi", background=True)
    threading.Timer(0.2, gate.open).start()
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    server.wait_for_metric('caudal_kv_blocks{state="used"}', 0)


def test_what_must_be_stored(hello: RunningServer):
    with pytest.raises(openai.BadRequestError) as caught:
        hello.openai().responses.create(model="fake", input="Hi", background=True, store=False)
    assert caught.value.param == "background"


def test_only_the_latest_events_are_remembered(hello: RunningServer):
    client = hello.openai()

    def ended(identity: str) -> bool:
        return client.responses.retrieve(identity).status == "completed"

    made = []
    for _ in range(MAX_REMEMBERED + 3):
        made.append(client.responses.create(model="fake", input="Hi", background=True).id)
        until(lambda: ended(made[-1]))
    stream: Any = client.responses.retrieve(made[-1], stream=True)
    assert [event.type for event in stream][-1] == "response.completed"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.retrieve(made[0], stream=True)
    assert caught.value.param == "stream"
    assert client.responses.retrieve(made[0]).output_text == "Hello, día!"


def test_memory_is_bounded():
    def run(identity: str, size: int, *, ended: bool) -> BackgroundRun:
        writer = SimpleNamespace(identity=identity)
        return cast("BackgroundRun", SimpleNamespace(writer=writer, size=size, ended=ended))

    runs = BackgroundRuns(max_bytes=1000)
    runs.add(run("a", 600, ended=True))
    runs.check_room()
    runs.add(run("b", 600, ended=True))
    runs.check_room()  # the oldest makes room
    assert runs.get("a") is None
    assert runs.get("b") is not None
    runs.add(run("c", 1200, ended=False))
    with pytest.raises(QueueFullError):
        runs.check_room()
    assert runs.get("b") is None
    assert runs.get("c") is not None


def test_memory_is_that_of_the_request_and_all_events(
    hello: RunningServer, monkeypatch: pytest.MonkeyPatch
):
    begun: list[BackgroundRun] = []
    add = BackgroundRuns.add

    def watched(runs: BackgroundRuns, run: BackgroundRun) -> None:
        begun.append(run)
        add(runs, run)

    monkeypatch.setattr(BackgroundRuns, "add", watched)
    user = "u" * 100_000
    client = hello.openai()
    response = client.responses.create(model="fake", input="Hi", background=True, user=user)
    until(lambda: client.responses.retrieve(response.id).status == "completed")
    assert 100_000 < begun[0].size < 150_000
