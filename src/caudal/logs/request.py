"""Which request a line of the log is about."""

from __future__ import annotations

from contextvars import Context, ContextVar

_REQUEST: ContextVar[str | None] = ContextVar("caudal_request", default=None)


def current_request() -> str | None:
    """The id of the request that this task works for; None where it works for none."""
    return _REQUEST.get()


def work_for(request_id: str | None) -> None:
    """This task, and what it begins, works for a request from here on, to its end."""
    _REQUEST.set(request_id)


def for_no_request() -> Context:
    """What a task or a timer is given as its `context` that may outlive the request in which it
    begins, or work for others.
    """
    return Context()
