"""Models in processes of their own: what happens when those end, or don't go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from caudal.errors import ModelLoadError, ParameterError, WorkerEndedError
from caudal.loading.options import LoadOptions
from caudal.logs.formats import TextFormat
from caudal.logs.withheld import Discretion
from caudal.sampling_params import SamplingParams
from caudal.service.service import RunningText, Service
from caudal.service.work import CompletionWork
from caudal.workers.heartbeat import Patience
from caudal.workers.in_process import InProcessLauncher
from caudal.workers.launcher import LoadProgress, ModelSource
from caudal.workers.worker_launcher import WorkerLauncher, WorkerModel
from support.processes import children, wait_until_gone
from support.reference_model import TinyModel
from support.vocabularies import bpe_metadata

MEMORY = 2**24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = TinyModel(
        architecture="llama",
        vocab_size=259,
        layers=1,
        metadata=bpe_metadata(),
        context_length=100_000,  # for answers that take longer than whoever is to be quick
    )
    return tiny.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@contextlib.asynccontextmanager
async def running(
    model: Path, launcher: WorkerLauncher | None = None
) -> AsyncIterator[WorkerModel]:
    """The model in a process of its own, with little memory."""
    launcher = launcher or WorkerLauncher()
    starting = await launcher.start(
        ModelSource(name=str(model), names=("tiny",)), LoadOptions(threads=1)
    )
    worker = await starting.open(MEMORY)
    try:
        yield worker
    finally:
        await worker.stop()
        wait_until_gone([worker.process_id])


async def begin(service: Service, max_tokens: int) -> RunningText:
    params = SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True)
    [text] = await service.complete(CompletionWork(prompts=[[5, 6, 7]], params=params))
    return text


async def tokens_of(text: RunningText) -> list[int]:
    found = []
    async with contextlib.aclosing(text.deltas()) as stream:
        async for deltas in stream:
            found += [token.id for delta in deltas for token in delta.tokens]
    return found


def test_a_killed_process_fails_what_it_was_asked_and_nothing_else(
    model: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, "caudal.worker")

    async def kill_and_ask_another() -> None:
        async with running(model) as killed, running(model) as other:
            expected = await tokens_of(await begin(killed.service, 20))
            assert len(expected) == 20
            if sys.platform == "linux":
                score = Path(f"/proc/{killed.process_id}/oom_score_adj").read_text()
                assert int(score) > int(Path("/proc/self/oom_score_adj").read_text())
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(killed.process_id, number)  # which its parent sees to
            helpers = children(killed.process_id)
            assert helpers, "which run its chat template"
            text = await begin(killed.service, 90_000)
            stream = text.deltas()
            await anext(stream)
            os.kill(killed.process_id, signal.SIGKILL)
            with pytest.raises(
                WorkerEndedError, match="'tiny' was killed, probably because"
            ) as told:
                while True:
                    await anext(stream)
            assert told.value.retry_after is not None
            assert "memory" in await killed.wait_ended()
            wait_until_gone(helpers)
            assert not killed.service.healthy
            with pytest.raises(WorkerEndedError):
                await killed.service.tokenize("a")
            assert await tokens_of(await begin(other.service, 20)) == expected
            assert other.service.healthy

    asyncio.run(kill_and_ask_another())
    lines = [TextFormat(Discretion()).format(line) for line in caplog.records]
    assert any("tiny: length: prompt 3 tokens" in line for line in lines)


def test_a_stopped_process_is_found_out(model: Path):
    async def stop_it() -> None:
        async with running(model, WorkerLauncher(Patience(silence=1))) as worker:
            text = await begin(worker.service, 90_000)
            os.kill(worker.process_id, signal.SIGSTOP)
            with pytest.raises(WorkerEndedError, match="hung: it has given no sign of life"):
                await tokens_of(text)
            assert "hung" in await worker.wait_ended()

    asyncio.run(stop_it())


def test_a_process_ends_with_its_parent_however_that_ends(model: Path):
    program = """
import asyncio, os, signal, sys
from caudal.loading.options import LoadOptions
from caudal.workers.launcher import ModelSource
from caudal.workers.worker_launcher import WorkerLauncher

async def main():
    starting = await WorkerLauncher().start(ModelSource(name=sys.argv[1]), LoadOptions())
    running = await starting.open(2**20)
    print(running.process_id, flush=True)
    if sys.platform == "linux":  # where it need not even run for that
        os.kill(running.process_id, signal.SIGSTOP)
        while open(f"/proc/{running.process_id}/stat").read().rpartition(")")[2].split()[0] != "T":
            pass
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    command = [sys.executable, "-c", program, str(model)]
    parent = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    assert parent.returncode == -signal.SIGKILL
    wait_until_gone([int(parent.stdout)])


def test_draining_lets_answers_end(model: Path):
    async def drain() -> None:
        async with running(model) as worker:
            text = await begin(worker.service, 200)
            reading = asyncio.ensure_future(tokens_of(text))
            stopping = asyncio.ensure_future(worker.stop(drain_seconds=30))
            await asyncio.sleep(0)
            with pytest.raises(WorkerEndedError, match="was stopped"):
                await begin(worker.service, 1)
            assert len(await reading) == 200
            await stopping
            assert await worker.wait_ended() == "was stopped"

    asyncio.run(drain())


@pytest.mark.parametrize("launcher", [InProcessLauncher(), WorkerLauncher()])
def test_a_model_is_planned_before_it_is_opened(
    launcher: InProcessLauncher | WorkerLauncher, model: Path, tmp_path: Path
):
    source = ModelSource(name=str(model), names=("one", "two"))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(model.read_bytes()[:1000])
    seen: list[LoadProgress] = []

    async def plan_and_open() -> None:
        starting, failing = [
            await launcher.start(each, LoadOptions(threads=1, kv_memory=4 * MEMORY))
            for each in (source, ModelSource(name=str(broken)))
        ]
        plan = await starting.plan()
        assert plan.names == ("one", "two")
        assert (plan.architecture, plan.context_length) == ("llama", 100_000)
        assert "generate" in plan.tasks
        assert 0 < plan.least <= plan.memory <= 4 * MEMORY
        assert plan.weights > 0
        assert plan.workspace > 0
        running = await starting.open(MEMORY, seen.append)
        try:
            assert 0.9 * MEMORY < running.memory.sequences <= MEMORY
            assert running.memory.bytes < plan.bytes
            assert list(running.service.names) == ["one", "two"]
            assert await running.service.detokenize([]) == ""
        finally:
            await running.stop()
        assert await running.wait_ended() == "was stopped"
        for _ in range(2):
            with pytest.raises(ModelLoadError) as refused:
                await failing.plan()
            assert refused.value.source == str(broken)
        await failing.stop()
        small = await launcher.start(source, LoadOptions(threads=1))
        with pytest.raises(ParameterError, match="KV pool of 0 MiB holds 0 tokens"):
            await small.open(1)

    asyncio.run(plan_and_open())
    assert {each.stage for each in seen} == {"weights", "preparing"}
