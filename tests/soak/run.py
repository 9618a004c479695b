"""One soak: a server, a crowd, and what must be so in the end."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from soak.clients import Crowd, crowd_of
from soak.findings import Findings
from soak.keys import Keys
from soak.questions import StreamedTexts, answers_alone, questions
from soak.served import Footprint, ServedProcess, served
from support.reference_model import TinyModel
from support.vocabularies import bpe_metadata

MODEL = "soaked"
QUESTIONS = 60
LIMITED_RPM = 30
LAST_STREAMS = 20
LAST_ANSWER = 400
DRAIN_SECONDS = 60
QUIET_SECONDS = 30.0
MEMORY_SLACK = 24 * 2**20
"""Bytes by which the second half of a soak may exceed the first: buffers, fragments of the heap."""
WARM_SHARE = 0.2
"""Of the time, at its beginning, in which memory may still grow: connections, caches, pools."""
FILES_SLACK = 8


@dataclass(frozen=True, kw_only=True)
class Soak:
    """What is to be done.

    Attributes:
        seconds: How long the crowd asks.
        clients: How many there are.
        seed: Of what they do.
        folder: Where everything is kept.
        model: A model to serve instead of a tiny random one.
        samples: What the server took so far, by the seconds since the crowd came.
    """

    seconds: float
    clients: int
    seed: int
    folder: Path
    model: str | None = None
    samples: list[tuple[float, Footprint]] = field(default_factory=list)


def run(soak: Soak) -> Findings:
    """Serve, let the crowd in, and look at what is left."""
    soak.folder.mkdir(parents=True, exist_ok=True)
    keys = Keys(soak.folder / "keys.toml", limited_rpm=LIMITED_RPM)
    arguments = [soak.model or str(_tiny_model(soak.folder)), "--port", "0"]
    arguments += ["--served-model-name", MODEL, "--max-model-len", "1024"]
    arguments += ["--kv-memory", "2MiB" if soak.model is None else "128MiB"]
    arguments += ["--api-keys", str(keys.path), "--drain-timeout", str(DRAIN_SECONDS)]
    arguments += ["--max-connections", str(2 * soak.clients + 64)]
    home = {"CAUDAL_HOME": str(soak.folder / "home")} if soak.model is None else {}
    findings = Findings()
    with served(arguments, home, soak.folder / "server.log") as server:
        asyncio.run(_soak(soak, server, keys, findings))
        status = server.process.wait(timeout=DRAIN_SECONDS + 10)
        if status != 0:
            findings.blame("server", f"ended with status {status}")
    _judge_quota(keys, findings)
    _judge_log(soak.folder / "server.log", findings)
    return findings


def _tiny_model(folder: Path) -> Path:
    metadata = bpe_metadata() | {"general.architecture": "llama"}
    tiny = TinyModel(architecture="llama", layers=2, vocab_size=259, seed=1, metadata=metadata)
    return tiny.write(folder / "tiny.gguf")


async def _soak(soak: Soak, server: ServedProcess, keys: Keys, findings: Findings) -> None:
    headers = {"Authorization": f"Bearer {keys.admin}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=120) as http:
        answers = await answers_alone(http, MODEL, questions(QUESTIONS, soak.seed))
        await _quiet(http)
        before = server.footprint()
        crowd = Crowd(
            url=server.url,
            model=MODEL,
            keys=keys,
            answers=answers,
            findings=findings,
            deadline=time.monotonic() + soak.seconds,
        )
        watching = asyncio.ensure_future(_watch(soak, server, findings))
        await asyncio.gather(
            *(
                client(crowd, random.Random(soak.seed + number))
                for number, client in enumerate(crowd_of(soak.clients))
            )
        )
        watching.cancel()
        await _judge_what_is_left(http, server, before, findings)
        _judge_memory(soak, findings)
    await _stop_under_load(crowd, server)


async def _watch(soak: Soak, server: ServedProcess, findings: Findings) -> None:
    begin, last = time.monotonic(), 0.0
    every = max(1.0, soak.seconds / 200)
    while True:
        await asyncio.sleep(every)
        now, footprint = time.monotonic() - begin, await asyncio.to_thread(server.footprint)
        soak.samples.append((now, footprint))
        if now - last >= 10:
            last = now
            print(
                f"{now:6.0f} s  {footprint.memory / 2**20:7.1f} MiB  {footprint.files:5d} files  "
                f"{footprint.threads:3d} threads  {findings.outcomes.total():9,d} right  "
                f"{findings.wrong.total()} wrong",
                flush=True,
            )


async def _figures(http: httpx.AsyncClient) -> dict[str, float]:
    """Samples of /metrics, by name without what labels there are besides `state`."""
    figures: dict[str, float] = {}
    for line in (await http.get("/metrics")).text.splitlines():
        if line.startswith("#"):
            continue
        name, _, value = line.rpartition(" ")
        state = re.search(r'state="(\w+)"', name)
        name = name.partition("{")[0] + (f":{state[1]}" if state else "")
        figures[name] = figures.get(name, 0.0) + float(value)
    return figures


async def _quiet(http: httpx.AsyncClient) -> dict[str, float]:
    """The figures, once nothing runs any more; or whatever they are when that took too long."""
    deadline = time.monotonic() + QUIET_SECONDS
    while True:
        figures = await _figures(http)
        busy = figures["caudal_requests_running"] + figures["caudal_requests_waiting"]
        if not busy or time.monotonic() > deadline:
            return figures
        await asyncio.sleep(0.2)


async def _judge_what_is_left(
    http: httpx.AsyncClient, server: ServedProcess, before: Footprint, findings: Findings
) -> None:
    figures = await _quiet(http)
    for name in ("caudal_kv_blocks:used", "caudal_requests_running", "caudal_requests_waiting"):
        if figures[name]:
            findings.blame("left", f"{name} is {figures[name]:g}")
    files = 0
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        files = (await asyncio.to_thread(server.footprint)).files
        if files <= before.files + FILES_SLACK:
            return
        await asyncio.sleep(0.5)
    findings.blame("left", f"{files} open files, where there were {before.files}")


def _judge_memory(soak: Soak, findings: Findings) -> None:
    """The second half of the time, once warm, has what the first had."""
    warm = [each for seconds, each in soak.samples if seconds > soak.seconds * WARM_SHARE]
    if len(warm) < 8:
        return
    half = len(warm) // 2
    first, second = (
        statistics.median(each.memory for each in part) for part in (warm[:half], warm[half:])
    )
    print(f"memory: {first / 2**20:.1f} MiB, later {second / 2**20:.1f} MiB")
    if second > first + MEMORY_SLACK:
        findings.blame("memory", f"grew from {first / 2**20:.1f} to {second / 2**20:.1f} MiB")
    files = [statistics.median(each.files for each in part) for part in (warm[:half], warm[half:])]
    if files[1] > files[0] + FILES_SLACK + 0.2 * files[0]:
        findings.blame("files", f"grew from {files[0]:g} to {files[1]:g}")


async def _stop_under_load(crowd: Crowd, server: ServedProcess) -> None:
    """SIGTERM while streams run: each is finished, and what comes anew is told to go elsewhere."""
    async with crowd.client(crowd.keys.polite) as http:
        begun = asyncio.Semaphore(0)
        streams = [
            asyncio.ensure_future(_last_stream(crowd, http, begun)) for _ in range(LAST_STREAMS)
        ]
        for _ in range(LAST_STREAMS):
            await asyncio.wait_for(begun.acquire(), 60)
        server.tell(signal.SIGTERM)
        await asyncio.gather(*streams)


async def _last_stream(crowd: Crowd, http: httpx.AsyncClient, begun: asyncio.Semaphore) -> None:
    body = {"model": MODEL, "prompt": "the last", "max_tokens": LAST_ANSWER, "temperature": 0}
    got = StreamedTexts(1)
    try:
        async with http.stream(
            "POST", "/v1/completions", json=body | {"ignore_eos": True, "stream": True}
        ) as reply:
            async for line in reply.aiter_lines():
                if not got.texts[0]:
                    begun.release()
                got.add(line)
    except httpx.HTTPError as error:
        begun.release()
        crowd.findings.blame("drain", f"lost: {error!r}")
        return
    if got.whole:
        crowd.findings.count("drain", "finished")
    else:
        begun.release()
        crowd.findings.blame("drain", f"cut off: {got.error}")


def _judge_quota(keys: Keys, findings: Findings) -> None:
    """In no minute were more let in than the key may."""
    admitted = sorted(keys.admitted)
    for number, (begin, _) in enumerate(admitted):
        # All of these were let in within this minute, whenever that was between both times.
        within = sum(answered <= begin + 60 for _, answered in admitted[number:])
        if within > keys.limited_rpm:
            findings.blame("quota", f"{within} requests in a minute of {keys.limited_rpm}")
            return


def _judge_log(log: Path, findings: Findings) -> None:
    """Nothing unforeseen was logged."""
    for line in log.read_text(errors="replace").splitlines():
        if "Traceback" in line or "ERROR" in line or "was never retrieved" in line:
            findings.blame("log", line)
