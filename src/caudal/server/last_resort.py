"""Ends the process where what it was told to stop does not stop in time.

A thread that loads a model or computes can't be interrupted, and Python waits for threads when it
exits. Whoever told the server to stop has waited long enough by then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time

logger = logging.getLogger("caudal.server")

LAST_WORD_SECONDS = 0.2
"""How long the log may take: whoever should read it may have stopped to."""


class LastResort:
    """A countdown to the end of the process, begun by a signal and ended by nothing else.

    Args:
        seconds: From the first signal to the end.
        hurried_seconds: From the second.
    """

    def __init__(self, seconds: float, hurried_seconds: float) -> None:
        self._seconds = seconds
        self._hurried_seconds = hurried_seconds
        self._finished = False
        # Of all ways to tell a thread something, the one that a signal handler may use.
        self._limits: queue.SimpleQueue[float] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="caudal-last-resort", daemon=True).start()

    def allow(self, seconds: float) -> None:
        """Count down from so many seconds, once the first signal comes."""
        if self._seconds != self._hurried_seconds:  # else it has come
            self._seconds = seconds

    def hurry(self) -> None:
        """Begin to count down; the second time, to count down from less."""
        self._limits.put(self._seconds)
        self._seconds = self._hurried_seconds

    def finish(self, seconds: float) -> None:
        """Count down from so many seconds, and end without a word.

        What is still there then are threads whose results nobody waits for.
        """
        self._finished = True
        self._limits.put(seconds)

    def _run(self) -> None:
        # The clock is read after the wait: the limits count from when they are given.
        seconds = self._limits.get()
        deadline = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            while (left := deadline - time.monotonic()) > 0:
                seconds = self._limits.get(timeout=left)
                deadline = min(deadline, time.monotonic() + seconds)
        if not self._finished:
            words = "not everything could be stopped in time; ending without it"
            last = threading.Thread(target=logger.warning, args=(words,), daemon=True)
            last.start()
            last.join(LAST_WORD_SECONDS)
        os._exit(0)
