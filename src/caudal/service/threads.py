"""Threads for one kind of work, so that others never wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from caudal.errors import EngineDeadError, QueueFullError

_STOPPED = "The model is shutting down."

P = ParamSpec("P")
T = TypeVar("T")


class WorkThreads:
    """Runs functions beside the event loop: a few at once, in the order they came.

    Args:
        name: Of the threads.
        threads: How many run at once.
        max_waiting: How many more may wait; None for any number.
        queue: What the queue is called in the error for one more.
        limit: The name of the limit that it says.
        retry_after: Seconds after which it is sensible to try again.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        max_waiting: int | None = None,
        queue: str = "The server's queue",
        limit: str = "max_queue",
        retry_after: int = 1,
    ) -> None:
        self._executor = ThreadPoolExecutor(threads, name)
        self._most = None if max_waiting is None else threads + max_waiting
        self._max_waiting = max_waiting
        self._queue = queue
        self._limit = limit
        self._retry_after = retry_after
        self._lock = threading.Lock()
        self._under_way = 0
        self._closed = False

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function. One that runs keeps its place until it returns, whoever is cancelled.

        Raises:
            QueueFullError: Too many wait already.
            EngineDeadError: `close` was called before it began.
        """
        with self._lock:
            if self._most is not None and self._under_way >= self._most:
                assert self._max_waiting is not None
                raise QueueFullError(
                    self._max_waiting, self._retry_after, self._queue, limit=self._limit
                )
            if self._closed:
                raise EngineDeadError(_STOPPED)
            self._under_way += 1
            future = self._executor.submit(function, *args, **kwargs)
        future.add_done_callback(self._count_down)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise EngineDeadError(_STOPPED) from None
            raise

    def close(self) -> None:
        """Drop what waits. What runs is not waited for. Safe to call twice."""
        with self._lock:
            self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _count_down(self, _: Future[Any]) -> None:
        with self._lock:
            self._under_way -= 1
