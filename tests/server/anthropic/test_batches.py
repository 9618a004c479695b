"""Anthropic's batches, with the official client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from caudal.batches.options import BatchOptions
from caudal.server.batch_state import BatchHome
from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = serve_fake(ScriptedExecutor(script=b"Hello!" * 60, seconds=0.001))
    home = BatchHome(tmp_path_factory.mktemp("home"), BatchOptions(concurrency=3))
    with running_server(model, batch_home=home) as running:
        yield running


def asked(name: str, **more: Any) -> Any:
    params = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6}
    return {"custom_id": name, "params": params | more}


def ended(client: anthropic.Anthropic, identity: str) -> Any:
    deadline = time.monotonic() + 30
    while (batch := client.messages.batches.retrieve(identity)).processing_status != "ended":
        assert time.monotonic() < deadline, batch
        time.sleep(0.01)
    return batch


def test_a_batch_of_messages(server: RunningServer):
    client = server.anthropic()
    batch = client.messages.batches.create(
        requests=[*(asked(f"r{n}") for n in range(8)), asked("wrong", temprature=1)]
    )
    assert (batch.processing_status, batch.results_url) == ("in_progress", None)
    assert batch.request_counts.processing == 9
    assert (batch.expires_at - batch.created_at).total_seconds() == pytest.approx(86400)
    batch = ended(client, batch.id)
    assert batch.request_counts.to_dict() == {
        "processing": 0,
        "succeeded": 8,
        "errored": 1,
        "canceled": 0,
        "expired": 0,
    }
    results = list(client.messages.batches.results(batch.id))
    assert [each.custom_id for each in results] == [*(f"r{n}" for n in range(8)), "wrong"]
    first: Any = results[0].result
    assert (first.type, first.message.content[0].text) == ("succeeded", "Hello!")
    last: Any = results[-1].result
    assert (last.type, last.error.error.type) == ("errored", "invalid_request_error")
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)
    assert server.metric("caudal_files_bytes") == 0


def test_cancelling_paging_and_what_is_refused(server: RunningServer):
    client = server.anthropic()
    long = [asked(f"r{n}", max_tokens=300) for n in range(20)]
    first = client.messages.batches.create(requests=long)
    with pytest.raises(anthropic.ConflictError):
        client.messages.batches.delete(first.id)
    assert client.messages.batches.cancel(first.id).cancel_initiated_at is not None
    first = ended(client, first.id)
    kinds = [each.result.type for each in client.messages.batches.results(first.id)]
    assert len(kinds) == 20
    assert kinds.count("canceled") == first.request_counts.canceled >= 17
    second = client.messages.batches.create(requests=[asked("a")])
    assert [each.id for each in client.messages.batches.list(limit=1)] == [second.id, first.id]
    before = client.messages.batches.list(before_id=first.id, limit=5)
    assert [each.id for each in before.data] == [second.id]
    for wrong in (
        [asked("a"), asked("a")],
        [asked("a", stream=True)],
        [asked("no spaces")],
        [],
    ):
        with pytest.raises(anthropic.BadRequestError):
            client.messages.batches.create(requests=wrong)
    ended(client, second.id)
