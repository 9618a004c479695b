"""Counting and logging of requests that have embeddings for an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from caudal.errors import ParameterError, QueueFullError, RequestTimeoutError
from caudal.service.context import RequestContext
from caudal.service.metrics import ServiceMetrics, logged_context

logger = logging.getLogger("caudal.server")


@contextlib.contextmanager
def logged(metrics: ServiceMetrics, what: str, context: RequestContext) -> Iterator[None]:
    """Count what happens inside as one request, and log a line when it has ended.

    What is refused, and so never became a request, is neither counted nor logged.

    Args:
        metrics: Counts it.
        what: The request in a few words.
        context: Who asks; it has `begun`.
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
            seconds = context.seconds_since_arrival()
            metrics.count(outcome, seconds)
            logger.debug("%s: %s, %.2f s%s", outcome, what, seconds, logged_context(context))
