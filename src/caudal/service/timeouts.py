"""The time that a request has until it is submitted; from there on the engine sees to it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from caudal.engine.config import EngineConfig
from caudal.errors import RequestTimeoutError
from caudal.service.context import RequestContext


def in_time(
    context: RequestContext,
    config: EngineConfig,
    *,
    generates: bool,
    on_timeout: Callable[[], None] = lambda: None,
) -> AbstractAsyncContextManager[None]:
    """Where a request is made ready: its template runs, its text is tokenised, its grammar made.

    Args:
        context: When it arrived, and how long it has.
        config: How long requests have that don't say so.
        generates: Whether there will be a first token.
        on_timeout: Called before the error is raised.

    Raises:
        RequestTimeoutError: On leaving: time ran out, and what was inside has been cancelled.
    """
    seconds, limit = context.time_allowed(
        config.request_timeout, config.first_token_timeout, generates=generates
    )
    if seconds is None:  # as nearly always
        return contextlib.nullcontext()
    return _bounded(seconds, limit, context.arrived, on_timeout)


@contextlib.asynccontextmanager
async def _bounded(
    seconds: float, limit: str, arrived: float | None, on_timeout: Callable[[], None]
) -> AsyncIterator[None]:
    passed = 0.0 if arrived is None else time.monotonic() - arrived
    timer = asyncio.timeout(seconds - passed)
    try:
        async with timer:
            yield
    except TimeoutError:
        if not timer.expired():
            raise
        on_timeout()
        raise RequestTimeoutError(
            f"The request timed out: it was still being prepared after {seconds:.1f} s.",
            limit,
        ) from None
