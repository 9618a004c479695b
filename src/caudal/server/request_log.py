"""A line of the log for each request that has ended."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from caudal.logs.formats import FIELDS, REQUEST
from caudal.server.open_paths import PROBES
from caudal.server.records import RequestRecord
from caudal.service.words import shortened

logger = logging.getLogger("caudal.server")

MAX_NAME = 128
"""Most characters of a name that a client has given something."""


class RequestLog:
    """A `RecordSink`. What asks no model and is answered, as probes are, is for those who debug."""

    def ended(self, record: RequestRecord) -> None:
        """Write the line of a request."""
        quiet = record.model is None and (record.outcome == "ok" or record.route in PROBES)
        level = logging.DEBUG if quiet else logging.INFO
        if logger.isEnabledFor(level):
            more = {FIELDS: partial(facts_of, record), REQUEST: record.id}
            logger.log(level, "%s", _in_words(record), extra=more)


def is_probe(record: RequestRecord) -> bool:
    """Whether somebody has only looked whether the server is there, and it was, or is loading."""
    return record.route in PROBES and record.status in (200, 503)


def facts_of(record: RequestRecord) -> dict[str, Any]:
    """All that is known of a request, by names that stay; None for what isn't."""
    timings, parent = record.timings, record.traceparent
    return {
        "trace_id": None if parent is None else parent.trace_id,
        "tenant": record.tenant,
        "key_name": record.tenant_name,
        "client": record.client,
        "method": record.method,
        "route": record.route or None,
        "model": record.model,
        "asked_model": _name(record.asked_model),
        "user": _name(record.user),
        "batch": record.batch or None,
        "stream": record.stream,
        "status": record.status,
        "outcome": record.outcome,
        "limit": record.limit,
        "error": record.error,
        "finish_reasons": record.finish_reasons or None,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "reasoning_tokens": record.reasoning_tokens or None,
        "unused_prompt_tokens": record.unused_prompt_tokens or None,
        "unused_output_tokens": record.unused_output_tokens or None,
        "seconds": _seconds(record.seconds),
        "first_token_seconds": _seconds(record.first_token),
        "template_seconds": _seconds(timings.template),
        "queue_seconds": _seconds(timings.queue),
        "prefill_seconds": _seconds(timings.prefill),
        "decode_seconds": _seconds(timings.decode) if record.output_tokens else None,
    }


def _in_words(record: RequestRecord) -> str:
    """A request, for people: what it was and what it took."""
    what = f"{record.method} {record.route or '(no such route)'}"
    if record.model is not None:
        what += f", {record.model}"
    if record.finish_reasons or record.output_tokens or record.prompt_tokens:
        took = (
            f"prompt {record.prompt_tokens} tokens ({record.cached_tokens} cached), "
            f"answer {record.output_tokens} tokens"
        )
    elif record.outcome == "timeout":
        took = "still being prepared"
    else:
        took = f"{record.status or 'no answer'}"
        if record.error is not None:
            took += f" {record.error}"
    said = f"{record.outcome}: {took}, {record.seconds:.2f} s, {what}"
    if record.limit is not None:
        said += f", limit {record.limit}"
    if record.tenant_name is not None:
        said += f", key {record.tenant_name}"
    user = _name(record.user)
    return said if user is None else f"{said}, user {user!r}"


def _name(given: str | None) -> str | None:
    return None if given is None else shortened(given, MAX_NAME)


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
