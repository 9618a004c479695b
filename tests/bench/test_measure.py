"""Peers take turns, pause for one another, and fail by themselves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measure as measure_module
from benchmarks import processes
from benchmarks.cases import EngineCase, GuessCase, Timing
from benchmarks.costs import Matrices, ModelCosts
from benchmarks.files import ModelFile
from benchmarks.guessing import Drafts
from benchmarks.measure import Plan, measure
from benchmarks.peers.base import PeerError, WorkerSession
from benchmarks.processes import ProcessError

CASE = EngineCase(name="case", title="case", sequences=1, prompt_tokens=9, steps=1)
GUESS = GuessCase(name="guess", title="guess", text="JSON", sequences=3)
MODEL = ModelFile(
    name="model",
    title="Model",
    family="Model",
    four_bit=True,
    represents_family=True,
    path=Path("model.gguf"),
    costs=ModelCosts(
        body=Matrices(1, 0, 1), head=Matrices(1, 0, 1), layers=(), vocab_size=9, context_length=99
    ),
)


@dataclass
class FakeSession:
    name: str
    log: list[str]
    warms_up_itself: bool = False
    fails_at: int | None = None
    facts: dict[str, str] = field(default_factory=dict)
    stopped: bool = False

    def measure(self, case: EngineCase, seed: int) -> Timing:
        assert not self.stopped
        self.log.append(f"{self.name}{seed}")
        if seed == self.fails_at:
            raise ProcessError("it broke")
        return Timing(first=1.0, total=float(seed or 1))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.stopped = True
        try:
            yield
        finally:
            self.stopped = False

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append(f"{self.name} closed")


@dataclass
class FakePeer:
    name: str
    session: FakeSession | None
    title: str = ""

    def version(self) -> str:
        return "1"

    def engine(self, model: ModelFile, threads: int, max_len: int, kv_type: str) -> Any:
        assert (threads, max_len) == (2, CASE.max_len)
        if self.session is None:
            raise PeerError("can't read the file")
        return self.session

    def server(self, *_: object) -> Any:
        raise AssertionError("no case needs a server")


def plan(*peers: FakePeer, missing: dict[str, str] | None = None, runs: int = 3) -> Plan:
    return Plan(peers=peers, missing=missing or {}, runs=runs, threads=2, progress=lambda _: None)


def test_the_order_turns_around_and_the_first_run_does_not_count():
    log: list[str] = []
    peers = [FakePeer(name, FakeSession(name, log)) for name in "abc"]
    [results] = measure(MODEL, [CASE], plan(*peers))
    assert log[:12] == ["c0", "b0", "a0", "a1", "b1", "c1", "c2", "b2", "a2", "a3", "b3", "c3"]
    assert log[12:] == ["c closed", "b closed", "a closed"]
    assert results.peers["a"].rates == {"all": [10.0, 5.0, 10 / 3]}


def test_who_warms_up_itself_is_not_asked_to():
    log: list[str] = []
    list(measure(MODEL, [CASE], plan(FakePeer("a", FakeSession("a", log, True)), runs=1)))
    assert log == ["a1", "a closed"]


def test_a_peer_that_fails_says_why_and_leaves_the_others_alone():
    log: list[str] = []
    peers = [
        FakePeer("good", FakeSession("good", log)),
        FakePeer("late", FakeSession("late", log, fails_at=2)),
        FakePeer("picky", None),
        FakePeer("absent", None),
    ]
    [results] = measure(MODEL, [CASE], plan(*peers, missing={"absent": "not installed"}))
    assert len(results.peers["good"].rates["all"]) == 3
    assert results.peers["good"].missing is None
    assert results.peers["late"].missing == "it broke"
    assert log.count("late2") == 1
    assert "late3" not in log
    assert results.peers["picky"].missing == "can't read the file"
    assert results.peers["absent"].missing == "not installed"


@dataclass
class FakeServer:
    """Answers at its own speed, and says so."""

    url: str
    log: list[str]
    stopped: bool = False
    facts: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        before, self.stopped = self.stopped, True
        try:
            yield
        finally:
            self.stopped = before

    def __exit__(self, *_: object) -> None:
        self.log.append(f"{self.url} closed")


@dataclass
class ServingPeer:
    name: str
    log: list[str]
    can_guess: bool = True
    title: str = ""
    servers: dict[str, FakeServer] = field(default_factory=dict)

    def server(
        self, model: ModelFile, threads: int, max_len: int, concurrency: int, guesses: bool | None
    ) -> Any:
        assert (threads, max_len, concurrency) == (2, GUESS.max_len, GUESS.sequences)
        if guesses and not self.can_guess:
            raise PeerError("can't guess")
        url = f"{self.name} {'guessing' if guesses else 'alone'}"
        self.servers[url] = FakeServer(url, self.log)
        return self.servers[url]


def test_guesses_are_measured_beside_the_same_without(monkeypatch: pytest.MonkeyPatch):
    log: list[str] = []
    peers = [ServingPeer("a", log), ServingPeer("b", log), ServingPeer("c", log, can_guess=False)]
    servers = {}

    def answers(url: str, _: str, prompts: list[list[int]], temperature: float) -> Any:
        for peer in peers:
            servers.update(peer.servers)
        running = [name for name, server in servers.items() if not server.stopped]
        assert [name for name in running if name != "c alone"] == [url]
        assert temperature == 0.0
        log.append(f"{url} {prompts[0][0]}")
        rate = 30.0 if "guessing" in url else 10.0
        return rate, Drafts(8, 6) if url == "a guessing" else None

    monkeypatch.setattr(measure_module, "prompts_of", lambda model, case, run: [[run]])
    monkeypatch.setattr(measure_module, "measure_answers", answers)
    [results] = measure(MODEL, [GUESS], plan(*peers, runs=2))
    assert log[:5] == ["c alone closed", "b guessing 0", "b alone 0", "a guessing 0", "a alone 0"]
    assert log[5:9] == ["a alone 1", "a guessing 1", "b alone 1", "b guessing 1"]
    assert log[13:] == [
        "b guessing closed",
        "b alone closed",
        "a guessing closed",
        "a alone closed",
    ]
    assert results.peers["a"].rates == {"alone": [10.0, 10.0], "guessed": [30.0, 30.0]}
    assert results.peers["a"].drafts == Drafts(16, 12)
    assert results.peers["b"].drafts is None
    assert results.peers["c"].missing == "can't guess"


def test_models_are_loaded_again_for_keys_and_values_in_8_bits():
    log: list[str] = []

    class Loading(FakePeer):
        def engine(self, model: ModelFile, threads: int, max_len: int, kv_type: str) -> Any:
            log.append(kv_type)
            return super().engine(model, threads, max_len, kv_type)

    cases = [replace(CASE, kv_type="q8"), CASE]
    found = list(measure(MODEL, cases, plan(Loading("a", FakeSession("a", log)), runs=1)))
    assert log == ["f16", "a0", "a1", "a closed", "q8", "a0", "a1", "a closed"]
    assert [results.case for results in found] == cases[::-1]


WORKER = """
import json, sys
print(json.dumps({"ready": {"threads": "1"}}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job["seed"] == 7:
        sys.exit("it ran out of luck")
    count = job["sequences"] * job["generated"] - (job["seed"] == 5)
    print(json.dumps({"first": 1.0, "total": 2.0, "generated": count}), flush=True)
"""


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Starts a worker that runs the text of a program."""
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    monkeypatch.setattr(processes, "LOGS", tmp_path / "logs")
    return lambda text: WorkerSession([sys.executable, "-c", text], "worker", vocab_size=9)


def test_a_worker_answers_jobs_and_can_be_paused(python: Any):
    with python(WORKER) as worker:
        assert worker.facts == {"threads": "1"}
        with worker.paused():
            pass
        assert worker.measure(CASE, seed=1) == Timing(1.0, 2.0)


def test_a_worker_that_generates_too_little_is_found_out(python: Any):
    with python(WORKER) as worker, pytest.raises(PeerError, match="generated 1 of 2 tokens"):
        worker.measure(CASE, seed=5)


def test_a_worker_that_ends_leaves_its_last_words(python: Any):
    with python(WORKER) as worker:
        with pytest.raises(ProcessError, match="it ran out of luck"):
            worker.measure(CASE, seed=7)
        with pytest.raises(ProcessError):
            worker.measure(CASE, seed=1)
    with pytest.raises(ProcessError, match=r"could not load the model: no memory \(logs/worker"):
        python("import sys; sys.exit('no memory')")
