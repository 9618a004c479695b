"""Signs of life: a worker says every second that it gets on, and who hears nothing knows that it
hangs.

Both sides count their own ticks and not the time: where the machine sleeps, or all processes are
stopped together, nobody is thought to hang when they go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import threading
from collections.abc import Callable
from dataclasses import dataclass

INTERVAL = 1.0
"""Seconds between two signs."""

ALIVE, LOOP_HANGS, ENGINE_HANGS = b".", b"L", b"E"
"""Signs: all is well; the event loop hasn't gone round for long; the engine hasn't."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """After how many ticks something is taken to hang.

    Attributes:
        start: Until the first sign: Python has to start, and to import much.
        silence: Between two signs. A thread of its own gives them, so this is about a process that
            doesn't run, or that holds Python's lock.
        loop: Between two rounds of a worker's event loop.
        idle_engine: Between two rounds of its engine, where next to nothing is computed or read
            meanwhile. It may wait for its turn, or for a slow disk.
        busy_engine: Where something is: a large model's weights may have to come from the disk for
            each iteration.
    """

    start: int = 180
    silence: int = 20
    loop: int = 60
    idle_engine: int = 300
    busy_engine: int = 3600


PATIENCE = Patience()

_BUSY = 0.02
"""Share of one processor's time above which a process is busy; a page fault that had to wait for
the disk counts as much."""


class Heartbeat:
    """A worker's side: a thread that gives the signs.

    Args:
        pipe: Where to; it need not be read.
        loop: The event loop to watch.
        rounds: How often the engine has gone round; None where it needn't.
        on_parent_gone: Called when nobody can hear them any more.
        patience: See there.
    """

    def __init__(
        self,
        pipe: int,
        loop: asyncio.AbstractEventLoop,
        rounds: Callable[[], int | None],
        on_parent_gone: Callable[[], None],
        patience: Patience = PATIENCE,
    ) -> None:
        self._pipe = pipe
        self._loop = loop
        self._rounds = rounds
        self._on_parent_gone = on_parent_gone
        self._patience = patience
        self._loop_ticks = 0
        self._engine = EngineWatch(patience)
        self._stopped = threading.Event()
        os.set_blocking(pipe, False)
        threading.Thread(target=self._run, name="caudal-heartbeat", daemon=True).start()

    def _run(self) -> None:
        while True:
            sign = ALIVE
            if self._engine.hangs(self._rounds(), _spent()):
                sign = ENGINE_HANGS
            if self._loop_ticks > self._patience.loop:
                sign = LOOP_HANGS
            try:
                os.write(self._pipe, sign)
            except BlockingIOError:
                pass  # enough of them lie there unread
            except OSError:
                self._on_parent_gone()
                return
            self._loop_ticks += 1
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._note_loop)
            self._stopped.wait(INTERVAL)

    def _note_loop(self) -> None:
        self._loop_ticks = 0


class EngineWatch:
    """Whether an engine hangs, asked once a tick."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._rounds: int | None = None
        self._busy_ticks = self._idle_ticks = 0
        self._spent = 0.0

    def hangs(self, rounds: int | None, spent: float) -> bool:
        """Ask.

        Args:
            rounds: How often it has gone round; None while it waits for something to do.
            spent: What this process has computed and read, in seconds; see `_spent`.
        """
        is_busy = spent - self._spent > _BUSY * INTERVAL
        self._spent = spent
        if rounds is None or rounds != self._rounds:
            self._rounds = rounds
            self._busy_ticks = self._idle_ticks = 0
            return False
        self._busy_ticks += 1
        self._idle_ticks = 0 if is_busy else self._idle_ticks + 1
        patience = self._patience
        return self._idle_ticks > patience.idle_engine or self._busy_ticks > patience.busy_engine


def _spent() -> float:
    """Seconds for which this process has computed, or might have: page faults count as some."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + usage.ru_majflt * _BUSY


class Listener:
    """The other side: hears the signs, on the running event loop.

    Args:
        pipe: Where they come from; closed by `close`.
        on_hang: Called once, when the worker is taken to hang, with the end of a sentence about its
            process.
        patience: See there.
        interval: Seconds between two ticks.
    """

    def __init__(
        self,
        pipe: int,
        on_hang: Callable[[str], None],
        patience: Patience = PATIENCE,
        interval: float = INTERVAL,
    ) -> None:
        self._pipe = pipe
        self._on_hang = on_hang
        self._patience = patience
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._ticks = 0
        self._heard = False
        self._closed = False
        os.set_blocking(pipe, False)
        self._timer = self._loop.call_later(interval, self._tick)

    def close(self) -> None:
        """Listen no more. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._timer.cancel()
            os.close(self._pipe)

    def _tick(self) -> None:
        signs = b""
        with contextlib.suppress(OSError):
            signs = os.read(self._pipe, 4096)
        if signs:
            self._heard = True
            self._ticks = 0
        self._ticks += 1
        limit = self._patience.silence if self._heard else self._patience.start
        reason = None
        if LOOP_HANGS in signs:
            reason = "its event loop hasn't gone round for long"
        elif ENGINE_HANGS in signs:
            reason = "its engine hasn't gone round for long"
        elif self._ticks > limit:
            reason = f"it has given no sign of life for {limit * self._interval:.0f} s"
        if reason is None:
            self._timer = self._loop.call_later(self._interval, self._tick)
        else:
            self._on_hang(f"was killed, for it hung: {reason}")
