"""Ends the process where what it was told to stop does not stop in time.

A thread that loads a model or computes can't be interrupted, and Python waits for threads when it
exits. Whoever told the server to stop has waited long enough by then.
"""

from __future__ import annotations

import logging
import os
import queue
import threading

logger = logging.getLogger("caudal.server")


class LastResort:
    """A countdown to the end of the process, begun by a signal and ended by nothing else.

    Args:
        seconds: From the first signal to the end.
        hurried_seconds: From the second.
    """

    def __init__(self, seconds: float, hurried_seconds: float) -> None:
        self._seconds = seconds
        self._hurried_seconds = hurried_seconds
        # Of all ways to tell a thread something, the one that a signal handler may use.
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="caudal-last-resort", daemon=True).start()

    def hurry(self) -> None:
        """Begin to count down; the second time, to count down from less."""
        self._signals.put(None)

    def _run(self) -> None:
        self._signals.get()
        try:
            self._signals.get(timeout=self._seconds)
        except queue.Empty:
            pass
        else:
            threading.Event().wait(self._hurried_seconds)
        logger.warning("not everything could be stopped in time; ending without it")
        os._exit(0)
