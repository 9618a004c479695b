"""One batch under way: which line is next, which are being answered, and what is written down."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass

from caudal.batches.answers import TIMED_OUT, Answer, LineAnswer, Outcome, OutputForm, Why
from caudal.batches.errors import InputChangedError, NoRoomError
from caudal.batches.journal import Journal
from caudal.batches.lines import Line, Lines, ReadLine
from caudal.service.threads import WorkThreads

logger = logging.getLogger("caudal.batches")

FULL_DISK_SECONDS = 10.0
"""How long is waited where what became of lines can't be written down."""

MAX_ATTEMPTS = 5
"""How often a line is asked that the server can't answer: it may be the line that ends models."""

_RETRY_SECONDS = (1.0, 60.0)
"""How long is waited before a line is asked again, the first time and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkParts:
    """What a batch under way is made of.

    Attributes:
        name: What it is called.
        tenant: Who pays.
        lines: Its input.
        read: Reads a line of that.
        journal: What has become of lines.
        form: How that is written down.
        threads: Read and write files.
        note: Called with a line's outcome when it is on the disk.
    """

    name: str
    tenant: str | None
    lines: Lines
    read: ReadLine
    journal: Journal
    form: OutputForm
    threads: WorkThreads
    note: Callable[[Outcome], None] = lambda _: None


class BatchWork:
    """A batch's lines, on one event loop.

    Attributes:
        parts: What it is made of.
        under_way: Lines that are being answered.
        served: When a line of it was last begun, on the loop's clock.
        done: Set once no line is left to be answered, or none is to be any more.
        fault: Why none is, where the input is to blame.
    """

    def __init__(self, parts: WorkParts) -> None:
        self.parts = parts
        self.under_way = 0
        self.served = 0.0
        self.done = asyncio.Event()
        self.fault: InputChangedError | None = None
        self._gone = asyncio.Event()
        self._next = 0
        self._again: list[tuple[float, int]] = []
        self._attempts: dict[int, int] = {}
        self._paused_until = 0.0
        self._pending: list[tuple[int, Outcome, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._clock = asyncio.get_running_loop().time
        self._look()

    @property
    def stopped(self) -> bool:
        """Whether no more lines are to be answered."""
        return self._gone.is_set()

    def due(self) -> float | None:
        """When there is a line to begin, on the loop's clock; None: there is none left."""
        if self.stopped:
            return None
        if self._next < len(self.parts.lines):
            return self._paused_until
        return max(self._again[0][0], self._paused_until) if self._again else None

    def take(self, now: float) -> int:
        """The line to begin; there is one that is `due`."""
        self.under_way += 1
        self.served = now
        if self._again and self._again[0][0] <= now:
            return heapq.heappop(self._again)[1]
        index = self._next
        self._next += 1
        self._look()
        return index

    async def answer(self, index: int, answer: Answer) -> None:
        """Have a line answered that was taken, and write down what became of it."""
        try:
            await self._answer(index, answer)
        except InputChangedError as error:
            self.fault = error
            self.stop()
        except Exception:
            # Nothing of this is the line's fault: a file that can't be read, a fault of ours.
            logger.exception("A line of %s could not be asked.", self.parts.name)
            self._ask_again(index, FULL_DISK_SECONDS)
        finally:
            self.under_way -= 1
            if not self.under_way and self.due() is None:
                self.done.set()

    def stop(self) -> None:
        """Answer no more lines, and give up those that are being answered."""
        self._gone.set()
        if not self.under_way:
            self.done.set()

    def unanswered(self, index: int, why: Why) -> bytes:
        """What is written down of a line that has no answer; raises `OSError`."""
        parts = self.parts
        line = parts.read(parts.lines.read(index), parts.lines.number(index))
        return parts.form.unanswered(line, why)

    async def _answer(self, index: int, answer: Answer) -> None:
        parts = self.parts
        line = await parts.threads.run(self._read, index)
        if self.stopped:
            return
        answered = await answer(line, parts.tenant, self._gone)
        if self.stopped and answered.status >= 300:  # it was cut short
            return
        if (seconds := self._seconds_to_wait(index, answered)) is not None:
            self._ask_again(index, seconds)
            if answered.is_busy:
                self._paused_until = max(self._paused_until, self._clock() + seconds)
            return
        outcome = await parts.threads.run(parts.form.answered, line, answered)
        await self._write(index, outcome)
        self._attempts.pop(index, None)
        parts.note(outcome)

    def _read(self, index: int) -> Line:
        lines = self.parts.lines
        return self.parts.read(lines.read(index), lines.number(index))

    def _seconds_to_wait(self, index: int, answered: LineAnswer) -> float | None:
        """How long until a line is asked again; None: its answer counts."""
        if answered.retry_after is None or answered.status == TIMED_OUT:
            return None
        attempts = self._attempts[index] = self._attempts.get(index, 0) + 1
        if attempts >= MAX_ATTEMPTS and not answered.is_busy:
            return None
        least, most = _RETRY_SECONDS
        seconds: float = min(most, least * 2.0 ** min(attempts - 1, 10))
        return max(seconds, min(answered.retry_after, 3600.0))

    def _ask_again(self, index: int, seconds: float) -> None:
        heapq.heappush(self._again, (self._clock() + seconds, index))

    def _look(self) -> None:
        """Go to the next line of which nothing has become."""
        count = len(self.parts.lines)
        while self._next < count and self._next in self.parts.journal:
            self._next += 1
        if self._next == count and not self._again and not self.under_way:
            self.done.set()

    async def _write(self, index: int, outcome: Outcome) -> None:
        """Write down what became of a line; returns once it is on the disk, with others'."""
        written = asyncio.get_running_loop().create_future()
        self._pending.append((index, outcome, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_pending())
        await written

    async def _write_pending(self) -> None:
        while self._pending:
            pending = self._pending.copy()
            try:
                await self.parts.threads.run(
                    self.parts.journal.append, [(index, outcome) for index, outcome, _ in pending]
                )
            except (OSError, NoRoomError) as error:
                logger.error(
                    "What became of lines of %s can't be written down (%s); trying again.",
                    self.parts.name,
                    error,
                )
                self._paused_until = self._clock() + FULL_DISK_SECONDS
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._gone.wait(), FULL_DISK_SECONDS)
                if not self.stopped:
                    continue
                for _, _, written in pending:  # they are done again, or are said to be unanswered
                    written.cancel()
            del self._pending[: len(pending)]
            for _, _, written in pending:
                if not written.done():
                    written.set_result(None)
        self._writing = None
