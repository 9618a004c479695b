"""Chaos: five models behind one server with memory for two, asked all the time, while their
processes are killed, stopped and starved of memory, and models unloaded, at random.

`CAUDAL_CHAOS_SECONDS` makes it longer, and `CAUDAL_CHAOS_SEED` does the same things again, as far
as processes let it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from caudal.fleet import member as member_module
from caudal.fleet.catalogue import GivenModels, given_offer
from caudal.fleet.fleet import Fleet
from caudal.fleet.options import FleetOptions
from caudal.loading.options import LoadOptions
from caudal.store import Store
from caudal.workers.heartbeat import Patience
from caudal.workers.in_process import InProcessLauncher
from caudal.workers.launcher import Launcher, ServingOptions
from caudal.workers.worker_launcher import WorkerLauncher
from support.processes import started_by
from support.reference_model import TinyModel
from support.running_server import AnyServer, running_models
from support.tiny_bert import TinyBert
from support.vocabularies import bpe_metadata

SECONDS = float(os.environ.get("CAUDAL_CHAOS_SECONDS", "10"))
SEED = int(os.environ.get("CAUDAL_CHAOS_SEED") or random.randrange(10**6))

CLIENTS = 8

LOST = 60.0
"""Seconds after which a request without an answer is lost."""

RECOVERED = 60.0
"""Seconds in which every model must answer once nobody harms it any more."""

GENERATORS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma3": {"window": 32},
    "another": {"architecture": "llama", "layers": 3},
}
ENCODER = "bert"
PROMPTS = ("one", "two and three", "a rather longer prompt, of some forty tokens")

LOAD = LoadOptions(threads=1, max_num_seqs=4, max_model_len=512, kv_memory=2**20, for_all=True)

PATIENCE = Patience(start=10, silence=2)
"""Less than usual: processes are stopped while they start, too, and all wait for such a one whose
model is the next to be loaded."""

ALLOWED = {429, 500, 503, 504}


def write_models(folder: Path) -> dict[str, Path]:
    """Random models, by name."""
    folder.mkdir()
    models = {}
    for seed, (name, how) in enumerate(GENERATORS.items()):
        how = {"architecture": name, "layers": 2} | how
        metadata = bpe_metadata() | {"general.architecture": how["architecture"]}
        tiny = TinyModel(vocab_size=259, seed=seed, metadata=metadata, **how)
        models[name] = tiny.write(folder / f"{name}.gguf")
    return models | {ENCODER: TinyBert().write_folder(folder / ENCODER)}


def digests(folder: Path) -> dict[str, str]:
    """Of all files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def fleet_of(models: dict[str, Path], launcher: Launcher, home: Path, **options: Any) -> Fleet:
    offers = [
        given_offer(
            str(path),
            names=(name,),
            store=Store(home),
            serving=ServingOptions(),
            pinned=False,
            keep_alive=None,
        )
        for name, path in models.items()
    ]
    return Fleet(GivenModels(offers), launcher, FleetOptions(load=LOAD, **options))


@dataclass(frozen=True)
class Question:
    """What a client asks."""

    model: str
    prompt: str
    sampled: bool

    @property
    def path(self) -> str:
        return "/v1/embeddings" if self.model == ENCODER else "/v1/completions"

    def body(self, *, stream: bool = False) -> dict[str, Any]:
        if self.model == ENCODER:
            return {"model": self.model, "input": self.prompt}
        return {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": 24,
            "temperature": 0.9 if self.sampled else 0,
            "seed": 7,
            "ignore_eos": True,
            "stream": stream,
        }

    def answer(self, reply: dict[str, Any]) -> Any:
        if self.model == ENCODER:
            return reply["data"][0]["embedding"]
        return reply["choices"][0]["text"]


QUESTIONS = [
    Question(model, prompt, sampled)
    for model in (*GENERATORS, ENCODER)
    for prompt in PROMPTS
    for sampled in (False, True)
]


@dataclass
class Findings:
    """What came of the requests, and what was wrong with any."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    harm: Counter[str] = field(default_factory=Counter)


class Client:
    """Asks questions one after another, whole or as streams, and goes away from some answers."""

    def __init__(
        self, url: str, expected: dict[Question, Any], findings: Findings, seed: int
    ) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=LOST)
        self._expected = expected
        self._findings = findings
        self._random = random.Random(seed)

    async def ask_until(self, deadline: float) -> None:
        async with self._http:
            while time.monotonic() < deadline:
                question = self._random.choice(QUESTIONS)
                streams = question.model != ENCODER and self._random.random() < 0.5
                leaves = self._random.random() < 0.1
                try:
                    if streams:
                        await self._stream(question, leaves=leaves)
                    else:
                        await self._whole(question, leaves=leaves)
                except httpx.HTTPError as error:
                    self._wrong(question, f"lost: {error!r}")
                await asyncio.sleep(0.05)  # or those that are refused at once ask all the time

    async def _whole(self, question: Question, *, leaves: bool) -> None:
        asking = self._http.post(question.path, json=question.body())
        if leaves:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asking, self._random.random())
            self._findings.outcomes["left"] += 1
            return
        reply = await asking
        if reply.status_code == 200:
            self._check(question, question.answer(reply.json()))
        else:
            self._failed(question, reply.status_code, reply.json()["error"])

    async def _stream(self, question: Question, *, leaves: bool) -> None:
        text, ended, failed = "", False, False
        body = question.body(stream=True)
        async with self._http.stream("POST", question.path, json=body) as reply:
            if reply.status_code != 200:
                await reply.aread()
                self._failed(question, reply.status_code, reply.json()["error"])
                return
            async for line in reply.aiter_lines():
                if leaves and text:
                    self._findings.outcomes["left"] += 1
                    return
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    break
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    failed = True
                    self._failed(question, 503, event["error"])
                else:
                    text += event["choices"][0]["text"]
                    ended |= event["choices"][0]["finish_reason"] is not None
            else:
                self._wrong(question, "a stream ended without its end")
        if ended:
            self._check(question, text)
        elif not failed:
            self._wrong(question, "a stream ended without an error in the middle of its answer")

    def _check(self, question: Question, answer: Any) -> None:
        self._findings.outcomes["right"] += 1
        if answer != self._expected[question]:
            self._wrong(question, f"{answer!r:.200} instead of {self._expected[question]!r:.200}")

    def _failed(self, question: Question, status: int, error: dict[str, Any]) -> None:
        self._findings.outcomes[f"{status} {error['code']}"] += 1
        message = error["message"]
        self._findings.reasons[message.partition(" Retry in ")[0]] += 1
        if status not in ALLOWED or not message or "nternal server error" in message:
            self._wrong(question, f"{status}: {message}")

    def _wrong(self, question: Question, what: str) -> None:
        self._findings.wrong.append(f"{question.model}: {what}")


class Monkey:
    """Does harm to workers, at random."""

    def __init__(self, url: str, findings: Findings, seed: int) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=LOST)
        self._findings = findings
        self._random = random.Random(seed)

    async def harm_until(self, deadline: float) -> None:
        async with self._http:
            while time.monotonic() < deadline:
                await asyncio.sleep(self._random.uniform(0.2, 1.0))
                processes = worker_processes()
                if not processes:
                    continue
                process = self._random.choice(processes)
                harm = self._random.choice(
                    (self._kill, self._stop, self._hold_up, self._starve, self._unload)
                )
                self._findings.harm[harm.__name__.strip("_")] += 1
                with contextlib.suppress(ProcessLookupError):
                    await harm(process)

    async def _kill(self, process: int) -> None:
        os.kill(process, signal.SIGKILL)

    async def _stop(self, process: int) -> None:
        os.kill(process, signal.SIGSTOP)

    async def _hold_up(self, process: int) -> None:
        os.kill(process, signal.SIGSTOP)
        await asyncio.sleep(self._random.uniform(0.1, 1.0))
        os.kill(process, signal.SIGCONT)

    async def _starve(self, process: int) -> None:
        """Nothing more of the memory that it has room for, for a while."""
        _, hard = resource.prlimit(process, resource.RLIMIT_AS)
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + 2**18
        resource.prlimit(process, resource.RLIMIT_AS, (size, hard))
        await asyncio.sleep(self._random.uniform(0.2, 1.5))
        resource.prlimit(process, resource.RLIMIT_AS, (hard, hard))

    async def _unload(self, process: int) -> None:
        name = self._random.choice((*GENERATORS, ENCODER))
        reply = await self._http.post("/models/unload", json={"model": name})
        if reply.status_code not in (200, *ALLOWED):
            self._findings.wrong.append(f"unloading {name}: {reply.text}")


def worker_processes() -> list[int]:
    """The processes of models that this one has started."""
    return started_by(os.getpid(), b"caudal.workers")


def open_files() -> int:
    """How many this process has."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def answers_of(server: AnyServer, questions: Sequence[Question]) -> dict[Question, Any]:
    """What each is answered with nobody in the way."""
    async with httpx.AsyncClient(base_url=server.url, timeout=LOST) as http:
        answers = {}
        for question in questions:
            reply = await http.post(question.path, json=question.body())
            assert reply.status_code == 200, reply.text
            answers[question] = question.answer(reply.json())
        return answers


async def watch_memory(fleet: Fleet, findings: Findings) -> None:
    """See that models together never have more than they may."""
    while True:
        held = sum(member.held for member in fleet.members)
        if held > fleet.options.memory:
            findings.wrong.append(f"{held} bytes are held of {fleet.options.memory}")
        await asyncio.sleep(0.01)


async def need_of_one(models: dict[str, Path], home: Path) -> int:
    """Bytes that one of the models takes in a process of its own; the others are much alike."""
    fleet = fleet_of(models, WorkerLauncher(), home, memory=2**40)
    [first, *_] = await fleet.refresh()
    starting = await WorkerLauncher().start(first.offer.source, LOAD)
    try:
        return (await starting.plan()).bytes
    finally:
        await starting.stop()


async def recover(server: AnyServer, expected: dict[Question, Any]) -> None:
    """Every model answers again, and right."""
    deadline = time.monotonic() + RECOVERED
    async with httpx.AsyncClient(base_url=server.url, timeout=LOST) as http:
        for question in QUESTIONS[::6]:
            while True:
                reply = await http.post(question.path, json=question.body())
                if reply.status_code == 200:
                    assert question.answer(reply.json()) == expected[question]
                    break
                assert time.monotonic() < deadline, reply.text
                await asyncio.sleep(0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prlimit")
@pytest.mark.timeout(SECONDS + 240)
def test_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"CAUDAL_CHAOS_SEED={SEED} CAUDAL_CHAOS_SECONDS={SECONDS:g}")
    # Or there would be nobody left to be harmed.
    monkeypatch.setattr(member_module, "LONGEST_BACK_OFF", 0.5)
    models = write_models(tmp_path / "models")
    before = digests(tmp_path / "models")
    quiet = fleet_of(models, InProcessLauncher(), tmp_path, memory=2**40)
    with running_models(quiet, quiet.start) as server:
        expected = asyncio.run(answers_of(server, QUESTIONS))
    need = asyncio.run(need_of_one(models, tmp_path))
    descriptors = open_files()
    findings = Findings()
    fleet = fleet_of(
        models,
        WorkerLauncher(PATIENCE),
        tmp_path,
        memory=int(need * 2.5),
        turn=1.0,
        pause=0.1,
        first_back_off=0.1,
    )

    async def run(server: AnyServer) -> None:
        deadline = time.monotonic() + SECONDS
        await asyncio.gather(
            *(
                Client(server.url, expected, findings, SEED + number).ask_until(deadline)
                for number in range(CLIENTS)
            ),
            Monkey(server.url, findings, SEED).harm_until(deadline),
        )
        await recover(server, expected)

    async def start() -> None:
        await fleet.start()
        watching.append(asyncio.ensure_future(watch_memory(fleet, findings)))

    watching: list[asyncio.Task[None]] = []
    with running_models(fleet, start) as server:
        asyncio.run(run(server))
    print(dict(findings.outcomes), dict(findings.harm))
    for reason, times in findings.reasons.most_common():
        print(f"{times:4d} {reason}")
    assert findings.wrong == []
    assert findings.outcomes["right"] > 0
    assert worker_processes() == []
    assert sum(member.held for member in fleet.members) == 0
    assert digests(tmp_path / "models") == before
    assert open_files() <= descriptors + 2
