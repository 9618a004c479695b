"""Quotas of keys, as requests meet them: taken or refused, and told how they stand.

OpenAI's headers say how long it is until a limit stands as in the beginning as Go writes durations
(`6m0s`), Anthropic's when that is (RFC 3339).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import Request
from starlette.types import Scope

from caudal.server.anthropic.errors import speaks_anthropic
from caudal.server.asking import RequestAsking
from caudal.server.records import RecordSink, RequestRecord, record_of
from caudal.server.tenancy import tenant_of
from caudal.tenants.quotas import Estimate, Quotas
from caudal.tenants.rules import Tenant

_SCOPE_KEY = "caudal.quota"
"""Where a scope says that quotas were asked about its request."""

_FIELDS = ("limit", "remaining", "reset")


class Settling(RecordSink):
    """Settles what a request was taken for once it has ended."""

    def ended(self, record: RequestRecord) -> None:
        """See `RecordSink`."""
        if record.admission is not None:
            record.admission.settle(
                record.prompt_tokens
                - record.cached_tokens
                + record.output_tokens
                + record.unused_prompt_tokens
                + record.unused_output_tokens
            )


def take(request: Request, body: Any, asking: RequestAsking) -> None:
    """Take a request that asks something of a model.

    Raises:
        LimitError: Its key has asked enough.
    """
    scope = request.scope
    tenant = tenant_of(scope)
    if not tenant.rules.has_quota:
        return
    scope[_SCOPE_KEY] = True
    quotas: Quotas = request.app.state.quotas
    record_of(scope).admission = quotas.admit(
        tenant, lambda: Estimate(asking.prompt_tokens, body.estimated_output())
    )


def quota_headers(scope: Scope, quotas: Quotas, tenant: Tenant) -> Iterator[tuple[bytes, bytes]]:
    """What an answer says of how its key's limits stand; nothing where none was asked about."""
    if _SCOPE_KEY not in scope:
        return
    anthropic = speaks_anthropic(scope)
    for what, standing in quotas.standings(tenant):
        if anthropic:
            prefix = f"anthropic-ratelimit-{what}"
            reset = _moment(standing.reset)
            names = [f"{prefix}-{each}" for each in _FIELDS]
        else:
            reset = _duration(standing.reset)
            names = [f"x-ratelimit-{each}-{what}" for each in _FIELDS]
        values = (str(standing.limit), str(standing.remaining), reset)
        for name, value in zip(names, values, strict=True):
            yield name.encode(), value.encode()


def _duration(seconds: float) -> str:
    """As Go writes one, to the millisecond: `0s`, `17ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _moment(seconds: float) -> str:
    """The second that begins then or next."""
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    if moment.microsecond:
        moment = moment.replace(microsecond=0) + timedelta(seconds=1)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
