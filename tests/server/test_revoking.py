"""Keys that are revoked while something runs for them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from caudal.errors import StoreError
from caudal.fleet.fleet import Fleet
from caudal.fleet.options import FleetOptions
from caudal.server.auth import Access
from caudal.server.served_store import ServedStore
from caudal.store import Store
from caudal.tenants.key_file import KeyFile
from caudal.tenants.ring import KeyRing
from caudal.workers.store_messages import StoreJob
from support.fake_launcher import FakeLauncher, FakeModel, Offered, offers
from support.fake_model import ScriptedExecutor, serve_fake
from support.far_model import FarModel
from support.record_list import RecordList
from support.running_server import AnyServer, metric_value, running_models, running_server

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": "fake", "messages": MESSAGES, "max_tokens": 5000}

RUNNING = "caudal_requests_running"


class Keys:
    """A file with the keys `alice` and `root`, each its own name."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.toml"
        self.write("alice", "root")

    def write(self, *names: str) -> None:
        new = self.file.with_suffix(".new")
        tables = [
            f'[keys.{name}]\nhash = "sha256:{hashlib.sha256(name.encode()).hexdigest()}"\n'
            f"admin = {str(name == 'root').lower()}\n"
            for name in names
        ]
        new.write_text("\n".join(tables))
        new.replace(self.file)

    def revoke(self) -> None:
        self.write("root")

    def access(self) -> Access:
        return Access(keys=KeyRing([KeyFile(self.file)]))


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    monkeypatch.setattr("caudal.tenants.ring.LOOK_SECONDS", 0.05)
    return Keys(tmp_path)


@pytest.fixture
def endless(keys: Keys) -> Iterator[AnyServer]:
    """Its model says a word every few milliseconds, for half a minute."""
    executor = ScriptedExecutor(
        script=b"word " * 1200, num_blocks=4096, fail=lambda _: time.sleep(0.005)
    )
    model = serve_fake(executor, max_model_len=8000)
    with running_server(FarModel(model), access=keys.access()) as server:
        server.http.headers["authorization"] = "Bearer alice"
        yield server


def wait_until_idle(server: AnyServer) -> None:
    """Wait until nothing runs, and no running sequence has a block."""
    deadline = time.monotonic() + 20
    while True:
        text = server.http.get("/metrics", headers={"authorization": "Bearer root"}).text
        samples = (RUNNING, 'caudal_kv_blocks{state="used"}')
        figures = [metric_value(text, sample) for sample in samples]
        if figures == [0.0, 0.0]:
            return
        assert time.monotonic() < deadline, figures
        time.sleep(0.02)


def test_streams_end_with_their_apis_own_error(endless: AnyServer, keys: Keys):
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"model": "fake", "prompt": "x", "max_tokens": 5000}),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"model": "fake", "input": "x"}),
        ("/api/chat", {"model": "fake", "messages": MESSAGES}),
        ("/completion", {"prompt": "x"}),
    ]
    ends: dict[str, list[str]] = {}
    begun = threading.Barrier(len(asked) + 1)

    def read(path: str, body: dict[str, Any]) -> None:
        with endless.http.stream("POST", path, json={**body, "stream": True}) as answer:
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                if len(lines) == 8:
                    begun.wait(20)
            ends[path] = [line for line in lines if line][-3:]

    threads = [threading.Thread(target=read, args=each) for each in asked]
    for thread in threads:
        thread.start()
    begun.wait(20)
    keys.revoke()
    for thread in threads:
        thread.join(20)
    assert "revoked" in json.loads(ends["/v1/chat/completions"][-2][6:])["error"]["message"]
    assert ends["/v1/chat/completions"][-1] == "data: [DONE]"
    assert json.loads(ends["/v1/completions"][-2][6:])["error"]["code"] == "invalid_api_key"
    assert ends["/v1/messages"][-2] == "event: error"
    kind = json.loads(ends["/v1/messages"][-1][6:])["error"]["type"]
    assert kind == "authentication_error"
    assert ends["/v1/responses"][-2] == "event: response.failed"
    assert "revoked" in json.loads(ends["/api/chat"][-1])["error"]
    assert "revoked" in " ".join(ends["/completion"])
    assert endless.http.get("/v1/models").status_code == 401
    wait_until_idle(endless)


def test_what_hasnt_begun_and_what_has_no_client_ends_too(endless: AnyServer, keys: Keys):
    run = endless.http.post(
        "/v1/responses", json={"model": "fake", "input": "x", "background": True}
    ).json()
    answers: list[httpx.Response] = []

    def ask(path: str) -> None:
        answers.append(endless.http.post(path, json=CHAT))

    asking = [
        threading.Thread(target=ask, args=(path,))
        for path in ("/v1/chat/completions", "/v1/messages")
    ]
    for thread in asking:
        thread.start()
    deadline = time.monotonic() + 20
    root = {"authorization": "Bearer root"}
    while metric_value(endless.http.get("/metrics", headers=root).text, RUNNING) < 3:
        assert time.monotonic() < deadline
    keys.revoke()
    for thread in asking:
        thread.join(20)
    assert [answer.status_code for answer in answers] == [401, 401]
    assert all("revoked" in answer.text for answer in answers)
    keys.write("alice", "root")  # the name has a key again, and what was its own
    while endless.http.get("/v1/models").status_code == 401:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    failed = endless.http.get(f"/v1/responses/{run['id']}").json()
    assert failed["status"] == "failed"
    assert "revoked" in failed["error"]["message"]
    wait_until_idle(endless)


def test_who_waits_for_a_model_doesnt_any_longer(keys: Keys):
    loading = FakeModel(read_seconds=0, open_seconds=600, stop_seconds=0)
    launcher = FakeLauncher({"fake": loading})
    fleet = Fleet(Offered(offers(["fake"])), launcher, FleetOptions(memory=30))
    with running_models(fleet, fleet.start, access=keys.access()) as server:
        headers = {"x-api-key": "alice"}
        answers: list[httpx.Response] = []

        def ask(path: str, stream: bool) -> None:
            body = {**CHAT, "stream": stream}
            answers.append(server.http.post(path, json=body, headers=headers))

        asking = [
            threading.Thread(target=ask, args=(path, stream))
            for path in ("/v1/chat/completions", "/v1/messages")
            for stream in (False, True)
        ]
        for thread in asking:
            thread.start()
        waiting = 0
        deadline = time.monotonic() + 20
        while waiting < 4:
            assert time.monotonic() < deadline
            root = {"x-api-key": "root"}
            with contextlib.suppress(IndexError):
                waiting = server.http.get("/ps", headers=root).json()["models"][0]["waiting"]
        keys.revoke()
        for thread in asking:
            thread.join(20)
        assert [answer.status_code for answer in answers] == [401] * 4
        status = server.http.get("/ps", headers={"x-api-key": "root"}).json()["models"]
        assert [model["waiting"] for model in status] in ([], [0])


BIG = 4 * 2**20
"""More bytes than fit between a server and a client that doesn't read."""


class Pulls:
    """A server that pulls as the model's name says, and does so for `root`."""

    def __init__(self, keys: Keys, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("caudal.server.ollama.changes.run_store_job", self._run)
        keys.write("root")
        self._access = keys.access()
        self._store = ServedStore(Store(folder / "home"), None)
        self.records = RecordList()
        self.ended = threading.Event()
        self.stuck = threading.Event()

    async def _run(self, job: StoreJob) -> AsyncGenerator[dict[str, Any], None]:
        try:
            yield {"status": "pulling manifest"}
            if "broken" in job.name:
                raise StoreError("the disk is full")
            while "left" in job.name:
                await asyncio.sleep(0.01)
                yield {"status": "pulling", "completed": 1}  # which shows that nobody reads it
            while "unread" in job.name:
                yield {"status": "x" * BIG}
                self.stuck.set()
            await asyncio.sleep(600)
        finally:
            self.ended.set()

    @contextlib.contextmanager
    def serving(self) -> Iterator[Callable[[str], AbstractContextManager[httpx.Response]]]:
        fleet = Fleet(Offered(offers([])), FakeLauncher({}), FleetOptions(memory=30))
        options: dict[str, Any] = {"store": self._store, "sinks": [self.records]}
        with running_models(fleet, fleet.start, access=self._access, **options) as server:
            server.http.headers["authorization"] = "Bearer root"
            yield lambda model: server.http.stream("POST", "/api/pull", json={"model": model})

    def outcome(self) -> str | None:
        """That of the request which has ended, and with it what it had begun."""
        outcome = self.records.next().outcome
        assert self.ended.is_set()
        self.ended.clear()
        return outcome


@pytest.fixture
def pulls(keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pulls:
    return Pulls(keys, tmp_path, monkeypatch)


def test_what_changes_the_store_ends_with_a_line_of_its_own(pulls: Pulls, keys: Keys):
    with pulls.serving() as pull:
        with pull("broken") as answer:
            assert "disk is full" in json.loads([*answer.iter_lines()][-1])["error"]
        assert pulls.outcome() == "failed"
        with pull("left") as answer:
            next(answer.iter_lines())
        assert pulls.outcome() == "cancelled"
        with pull("revoked") as answer:
            lines = answer.iter_lines()
            assert json.loads(next(lines)) == {"status": "pulling manifest"}
            keys.write("alice")
            [last] = [json.loads(line) for line in lines]
        assert "revoked" in last["error"]
        assert pulls.outcome() == "cancelled"


def test_a_client_that_doesnt_read_is_left_without_a_word(
    pulls: Pulls, keys: Keys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("caudal.server.revoking.LAST_SECONDS", 0.05)
    with pulls.serving() as pull, pull("unread") as answer:
        assert pulls.stuck.wait(20)
        keys.write("alice")
        assert pulls.outcome() == "cancelled"
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            answer.read()
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []
