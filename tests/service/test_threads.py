"""Threads for one kind of work: places, order, and what happens to those that are cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from caudal.errors import EngineDeadError, QueueFullError
from caudal.service.threads import WorkThreads


def test_so_many_run_so_many_wait_and_one_more_is_refused():
    async def run() -> None:
        threads = WorkThreads("test", 1, max_waiting=1, queue="The test", retry_after=3)
        gate = threading.Event()
        running = asyncio.create_task(threads.run(gate.wait))
        waiting = asyncio.create_task(threads.run(int, "7"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match=r"The test is full \(1 requests waiting") as full:
            await threads.run(int, "8")
        assert full.value.retry_after == 3
        gate.set()
        assert await running
        assert await waiting == 7
        assert await threads.run(int, "9") == 9
        threads.close()

    asyncio.run(run())


def test_who_is_cancelled_keeps_a_place_until_the_work_ends():
    async def run() -> None:
        threads = WorkThreads("test", 1, max_waiting=0)
        gate, begun = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            gate.wait()

        task = asyncio.create_task(threads.run(work))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(QueueFullError):
            await threads.run(int, "1")
        gate.set()
        while True:
            try:
                assert await threads.run(int, "1") == 1
                break
            except QueueFullError:
                await asyncio.sleep(0.01)
        threads.close()

    asyncio.run(run())


def test_who_waits_when_they_close_is_told():
    async def run() -> None:
        threads = WorkThreads("test", 1)
        gate = threading.Event()
        running = asyncio.create_task(threads.run(gate.wait))
        waiting = asyncio.create_task(threads.run(int, "1"))
        await asyncio.sleep(0)
        threads.close()
        with pytest.raises(EngineDeadError):
            await waiting
        with pytest.raises(EngineDeadError):
            await threads.run(int, "1")
        gate.set()
        assert await running

    asyncio.run(run())
