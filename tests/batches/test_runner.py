"""Which line is next, what is asked again, and what a killed process leaves."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from caudal.batches import work as work_module
from caudal.batches.answers import LineAnswer, OpenAIOutput
from caudal.batches.batch_service import BatchService
from caudal.batches.journal import Journal
from caudal.batches.line_forms import AnyLines
from caudal.batches.lines import Line, LineLimits, find_lines
from caudal.batches.options import BatchOptions
from caudal.batches.runner import BatchRunner
from caudal.batches.work import MAX_ATTEMPTS, BatchWork, WorkParts
from caudal.service.threads import WorkThreads

READ = AnyLines(lambda data: None, model="m")
DONE = LineAnswer(200, "req_1", b"{}")


def make_work(folder: Path, threads: WorkThreads, name: str, tenant: str, count: int) -> BatchWork:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f'{{"prompt": "{name}{number}"}}\n' for number in range(count)))
    lines, faults = find_lines(path, READ, LineLimits())
    assert not faults
    journal = Journal(folder / f"{name}.journal", count)
    return BatchWork(
        WorkParts(
            name=name,
            tenant=tenant,
            lines=lines,
            read=READ,
            journal=journal,
            form=OpenAIOutput(),
            threads=threads,
        )
    )


def test_tenants_and_their_batches_take_turns(tmp_path: Path):
    asked: list[str] = []
    under_way = most = 0

    async def answer(line: Line, tenant: str | None, gone: asyncio.Event) -> LineAnswer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        asked.append(line.body["prompt"][0])
        await asyncio.sleep(0.005)
        under_way -= 1
        return DONE

    async def run() -> None:
        threads = WorkThreads("test", 2)
        runner = BatchRunner(answer, 4)
        works = [
            make_work(tmp_path, threads, "a", "one", 50),
            make_work(tmp_path, threads, "b", "one", 50),
            make_work(tmp_path, threads, "c", "two", 50),
        ]
        await asyncio.gather(*map(runner.run, works))
        assert all(work.parts.journal.completed == 50 for work in works)

    asyncio.run(run())
    assert most == 4
    counts = Counter(asked[:80])
    assert 30 <= counts["c"] <= 50
    assert 10 <= counts["a"] <= 30


def test_what_may_be_answered_later_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(work_module, "_RETRY_SECONDS", (0.001, 0.002))
    times: Counter[str] = Counter()

    async def answer(line: Line, tenant: str | None, gone: asyncio.Event) -> LineAnswer:
        name = line.body["prompt"]
        times[name] += 1
        if name == "a0" and times[name] <= 2 * MAX_ATTEMPTS:
            return LineAnswer(429, "", b"{}", 0.0, is_busy=True)
        if name == "a1":
            return LineAnswer(503, "", b"{}", 0.0)
        if name == "a2":
            return LineAnswer(503, "", b"{}")
        if name == "a3":
            return LineAnswer(504, "", b'{"error": {"message": "late"}}', 1.0)
        return DONE

    async def run() -> Journal:
        work = make_work(tmp_path, WorkThreads("test", 2), "a", "one", 5)
        await BatchRunner(answer, 2).run(work)
        return work.parts.journal

    journal = asyncio.run(run())
    assert times == {"a0": 2 * MAX_ATTEMPTS + 1, "a1": MAX_ATTEMPTS, "a2": 1, "a3": 1, "a4": 1}
    assert (journal.completed, journal.failed) == (2, 3)


LINES = 200

SERVER = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = {path!r}
from batches.test_runner import serve
asyncio.run(serve(Path(sys.argv[1])))
"""


async def serve(home: Path) -> None:
    """Carry out the batch in a directory, slowly; make it first where there is none."""

    async def answer(line: Line, tenant: str | None, gone: asyncio.Event) -> LineAnswer:
        await asyncio.sleep(random.uniform(0, 0.004))
        with (home / "asked").open("a") as file:
            file.write(line.custom_id + "\n")
        return LineAnswer(200, "req", json.dumps({"said": line.custom_id * 100}).encode())

    service = BatchService(home, answer, lambda data: None, BatchOptions(concurrency=8))
    await service.open()
    if not service.all(None):
        with service.files.incoming() as incoming:
            for number in range(LINES):
                line = {"custom_id": f"r{number}", "method": "POST", "url": "/x", "body": {}}
                incoming.write(json.dumps(line).encode() + b"\n")
            kept = incoming.keep(tenant=None, filename="in", purpose="batch")
        await service.create(
            form="openai",
            tenant=None,
            endpoint="/x",
            input_file_id=kept.id,
            completion_window="24h",
            seconds=86400,
        )
    [batch] = service.all(None)
    while not batch.ended:
        await asyncio.sleep(0.01)
    assert batch.output_file_id is not None
    print(batch.status, service.files.path(batch.output_file_id, None))
    await service.stop()


def test_a_batch_outlives_its_process_being_killed(tmp_path: Path):
    program = SERVER.format(path=[str(Path(__file__).parents[1])])
    kills = 0
    while True:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        asked = tmp_path / "asked"
        before = asked.stat().st_size if asked.exists() else 0
        deadline = time.monotonic() + 30
        # Killed in the midst of work, twice.
        while kills < 2 and process.poll() is None and time.monotonic() < deadline:
            if asked.exists() and asked.stat().st_size > before + 150:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.001)
        said, _ = process.communicate(timeout=60)
        if said:
            break
    assert kills == 2
    status, path = said.split()
    assert status == "completed"
    done = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert [each["custom_id"] for each in done] == [f"r{number}" for number in range(LINES)]
    assert all(each["response"]["body"]["said"] == each["custom_id"] * 100 for each in done)
    again = len(asked.read_text().split()) - LINES
    assert 0 <= again <= 2 * 8  # no more than were under way
