"""What is known of a request, filled while it is answered, for whoever keeps count when it ends.

There is one record for each request of HTTP, refused ones included, and for each line of a batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Scope

from caudal.errors import LimitError
from caudal.server.request_ids import request_id
from caudal.server.trace_context import TraceParent, trace_parent
from caudal.service.observed import WorkRecord
from caudal.tenants.quotas import Admission

logger = logging.getLogger("caudal.server")

ASKED_METHOD = "caudal.asked_method"
"""Where a scope has the method that a request came with, where it is answered as another."""

_SCOPE_KEY = "caudal.record"


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRecord(WorkRecord):
    """A request.

    Attributes:
        id: What the answer's `x-request-id` says.
        method: HTTP's, as it came: HEAD, though that is answered as GET.
        traceparent: The span that it belongs to.
        client: The address that it comes from.
        tenant: The id of the key that it was asked with; None where there was none.
        tenant_name: What people call it.
        route: The path of its route with the names of its parameters, `/v1/responses/{identity}`;
            empty where it led to none.
        asked_model: The model that it names, as it was written; `model` is one that there is.
        user: Whom its body says it is for.
        batch: Whether it is a line of a batch.
        stream: Whether the answer comes piece by piece.
        arrived: When its headers had, on the monotonic clock.
        arrived_at: The same, in seconds of Unix time.
        status: HTTP's, as it was sent; None where nothing was.
        limit: The name of the limit that refused or ended it.
        error: What kind of failure it was, as its API calls it or we do; no message.
        first_token: Seconds from arrival to the first token, where any is generated.
        seconds: From arrival to the end.
        failed_status: The status that would have been sent, of a failure after the begin.
        admission: What its key's quotas have taken it for.
        ended: Whether all of this is final.
    """

    id: str
    method: str = ""
    traceparent: TraceParent | None = None
    client: str | None = None
    tenant: str | None = None
    tenant_name: str | None = None
    route: str = ""
    asked_model: str | None = None
    user: str | None = None
    batch: bool = False
    stream: bool = False
    arrived: float = field(default_factory=time.monotonic)
    arrived_at: float = field(default_factory=time.time)
    status: int | None = None
    limit: str | None = None
    error: str | None = None
    first_token: float | None = None
    seconds: float = 0.0
    failed_status: int | None = None
    admission: Admission | None = None
    ended: bool = False
    _holders: int = 0
    _records: Records | None = None

    def hold(self) -> None:
        """Something goes on behind the response; `release` says when it has ended."""
        self._holders += 1

    def release(self) -> None:
        """Something has ended; with the last, the request has."""
        self._holders -= 1
        if self._holders > 0 or self.ended:
            return
        self._finish()
        if self._records is not None:
            self._records.tell(self)

    def note_error(self, status: int, error: str, limit: str | None) -> None:
        """A failure is said to the client; `limit` names the limit that it is about."""
        if status != 499 or self.failed_status is None:  # it may have gone for what it was told
            self.failed_status, self.error, self.limit = status, error, limit

    def _finish(self) -> None:
        self.ended = True
        now = time.monotonic()
        self.seconds = now - self.arrived
        times = self.times if self.output_tokens else None
        first = self.first_answer if times is None else times.first_token or self.first_answer
        self.first_token = None if first is None else max(first - self.arrived, 0.0)
        if self.failure is not None and self.error is None:
            self.error = type(self.failure).__name__
        if self.limit is None and isinstance(self.failure, LimitError):
            self.limit = self.failure.limit
        if self.outcome not in ("failed", "timeout"):
            status = self.failed_status or self.status
            match status:
                case None | 499:
                    self.outcome = "cancelled"
                case 504:
                    self.outcome = "timeout"
                case 503 | 429:
                    self.outcome = "rejected"
                case _ if status >= 500:
                    self.outcome = "failed"
                case _ if status >= 400:
                    self.outcome = "rejected"
                case _ if self.outcome is None:
                    self.outcome = "ok"


class RecordSink(Protocol):
    """Who is told of requests that have ended."""

    def ended(self, record: RequestRecord) -> None:
        """A request has ended: called once, on the event loop, so it must not wait."""


class Records:
    """Everybody who is told.

    Args:
        sinks: They; more may be added.
    """

    def __init__(self, sinks: Iterable[RecordSink] = ()) -> None:
        self._sinks = list(sinks)

    def add(self, sink: RecordSink) -> None:
        """Tell somebody more."""
        self._sinks.append(sink)

    def begin(self, scope: Scope) -> RequestRecord:
        """The record of a request that has just come; whoever begins it releases it."""
        record = record_of(scope)
        record._records = self
        record.hold()
        return record

    def tell(self, record: RequestRecord) -> None:
        """A request has ended."""
        for sink in self._sinks:
            try:
                sink.ended(record)
            except Exception:  # who counts must not keep others from it, nor the client waiting
                logger.exception("the end of a request could not be noted")


def record_of(scope: Scope) -> RequestRecord:
    """What is known of a request."""
    record: RequestRecord | None = scope.get(_SCOPE_KEY)
    if record is None:
        client = scope.get("client")
        record = scope[_SCOPE_KEY] = RequestRecord(
            id=request_id(scope),
            method=scope.get(ASKED_METHOD) or scope.get("method", ""),
            traceparent=trace_parent(scope),
            client=None if client is None else client[0],
        )
    return record
