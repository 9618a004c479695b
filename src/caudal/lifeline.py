"""Processes that end with the one that started them, however that ends, and before it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from pathlib import Path


def end_with_parent(lifeline: int) -> None:
    """Have the kernel end this process when nobody holds the other end of a pipe any more.

    Python need not run for that, and on Linux not even the process: another signal would leave one
    that is stopped, with all its memory. macOS ends nobody for it: what waits there for the other
    end to close, as a reader of questions does, ends then.
    """
    let_end(signal.SIGIO)
    with contextlib.suppress(OSError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        if sys.platform == "linux":
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        sys.exit()


def let_end(number: signal.Signals) -> None:
    """Have a signal end this process, whatever the parent does with it."""
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def give_way(score: int) -> None:
    """Have the kernel end this process before others where memory runs out.

    Args:
        score: How much rather, 0 to 1000; a process's share of all memory counts as much again.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score))
