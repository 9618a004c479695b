"""Ends what somebody reads with an error, from outside, while they wait for more of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

T = TypeVar("T")


class Interruption:
    """What may end a stream; for one.

    Attributes:
        error: What it is ended with; None where it hasn't been.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._reader: asyncio.Task[Any] | None = None  # while it waits for the next item

    def interrupt(self, error: Exception) -> None:
        """Have whoever reads the stream get an error now, in place of the items to come."""
        self.error = error
        if self._reader is not None:
            self._reader.cancel()

    async def read(self, stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The stream's items; it is closed in any case. Raises `error` once there is one."""
        self._reader = asyncio.current_task()
        try:
            async with contextlib.aclosing(stream):
                if self.error is not None:
                    raise self.error
                async for item in stream:
                    self._reader = None
                    yield item
                    if self.error is not None:
                        raise self.error
                    self._reader = asyncio.current_task()  # it needn't be the same
        except asyncio.CancelledError:
            # Whether somebody wanted the task itself to end, or only what it reads.
            task = asyncio.current_task()
            if self.error is None or task is None or task.uncancel() > 0:
                raise
            raise self.error from None
        finally:
            self._reader = None
