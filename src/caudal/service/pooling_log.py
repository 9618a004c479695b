"""Counting and logging of requests that have embeddings for an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator

from caudal.errors import ParameterError, QueueFullError, RequestTimeoutError
from caudal.service.metrics import ServiceMetrics, logged_user

logger = logging.getLogger("caudal.server")


@contextlib.contextmanager
def logged(metrics: ServiceMetrics, what: str, user: str | None, arrived: float) -> Iterator[None]:
    """Count what happens inside as one request, and log a line when it has ended.

    What is refused, and so never became a request, is neither counted nor logged.

    Args:
        metrics: Counts it.
        what: The request in a few words.
        user: Named in the log.
        arrived: When it arrived, on the monotonic clock.
    """
    outcome: str | None = "failed"
    try:
        yield
        outcome = "stop"
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    except (ParameterError, QueueFullError):
        outcome = None
        raise
    except RequestTimeoutError:
        outcome = "timeout"
        raise
    finally:
        if outcome is not None:
            seconds = time.monotonic() - arrived
            metrics.count(outcome, seconds)
            logger.info("%s: %s, %.2f s%s", outcome, what, seconds, logged_user(user))
