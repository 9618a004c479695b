"""Which request a line of the log is about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_REQUEST: ContextVar[str | None] = ContextVar("caudal_request", default=None)


def current_request() -> str | None:
    """The id of the request that this task works for; None where it works for none."""
    return _REQUEST.get()


def work_for(request_id: str | None) -> None:
    """This task, and what it begins, works for a request from here on, to its end."""
    _REQUEST.set(request_id)


@contextlib.contextmanager
def working_for(request_id: str | None) -> Iterator[None]:
    """What happens inside, and what it begins, is for a request."""
    token = _REQUEST.set(request_id)
    try:
        yield
    finally:
        _REQUEST.reset(token)
