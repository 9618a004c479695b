"""Which line of which batch is answered next: a few at a time, tenants and their batches alike."""

from __future__ import annotations

import asyncio
from collections import Counter

from caudal.batches.answers import Answer
from caudal.batches.work import BatchWork


class BatchRunner:
    """Has the lines of batches answered. For one event loop.

    The next line is of the tenant that has the fewest under way, and of that one's batch that has:
    of equals, of those that have waited longest.

    Args:
        answer: Answers a line.
        concurrency: Most lines that are being answered at a time.
    """

    def __init__(self, answer: Answer, concurrency: int) -> None:
        self._answer = answer
        self._concurrency = concurrency
        self._works: list[BatchWork] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._served: dict[str | None, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False

    @property
    def under_way(self) -> int:
        """Lines that are being answered."""
        return len(self._tasks)

    async def run(self, work: BatchWork) -> None:
        """Have a batch's lines answered; returns once none is left, or after `BatchWork.stop`.

        Raises:
            InputChangedError: Its input isn't what it was; what is done stays.
        """
        self._works.append(work)
        self._begin_lines()
        try:
            await work.done.wait()
            if work.fault is not None:
                raise work.fault
        finally:
            self._works.remove(work)
            if all(each.parts.tenant != work.parts.tenant for each in self._works):
                self._served.pop(work.parts.tenant, None)

    def pause(self) -> None:
        """Begin no more lines."""
        self._paused = True

    async def stop(self) -> None:
        """Begin no more, and give up those that are being answered."""
        self._paused = True
        if self._timer is not None:
            self._timer.cancel()
        for work in list(self._works):
            work.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin_lines(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while not self._paused and len(self._tasks) < self._concurrency:
            now = loop.time()
            due = [(when, work) for work in self._works if (when := work.due()) is not None]
            ready = [work for when, work in due if when <= now]
            if not ready:
                if due:
                    self._timer = loop.call_at(min(when for when, _ in due), self._begin_lines)
                return
            work = self._fairest(ready)
            self._served[work.parts.tenant] = now
            task = loop.create_task(work.answer(work.take(now), self._answer))
            self._tasks.add(task)
            task.add_done_callback(self._end_line)

    def _end_line(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin_lines()

    def _fairest(self, works: list[BatchWork]) -> BatchWork:
        under_way = Counter[str | None]()
        for work in self._works:
            under_way[work.parts.tenant] += work.under_way
        return min(
            works,
            key=lambda work: (
                under_way[work.parts.tenant],
                self._served.get(work.parts.tenant, 0.0),
                work.under_way,
                work.served,
            ),
        )
