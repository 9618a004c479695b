"""Work whose progress is told while it goes on, and which whoever is told can end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

TICK_SECONDS = 0.1

Result = TypeVar("Result")


async def watched(work: Coroutine[Any, Any, Result], tick: Callable[[], None]) -> Result:
    """Do something and call `tick` ten times a second meanwhile, on this thread, and once behind.

    Args:
        work: What to do.
        tick: What it raises ends the work, and is raised here.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=TICK_SECONDS)
            tick()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
