"""What requests asked for that had no effect: said in a header, counted, and logged once."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter

from caudal.server.body_error import BodyError
from caudal.server.said import say

logger = logging.getLogger("caudal.server")

HEADER = "x-caudal-ignored"

_MAX_SERIES = 200
"""Names come from clients: more than so many share a series, and are not logged."""

OTHER = "other"


class IgnoredFields:
    """Counts the fields that were taken without effect, by name.

    Args:
        registry: Where the counts are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = Counter(
            "caudal_ignored_fields",
            "Fields of requests that were taken and had no effect.",
            ["field"],
            registry=registry,
        )
        self._known: set[str] = set()

    def count(self, route: str, field: str) -> None:
        """Add a field of a request; the first of its name is logged."""
        if field not in self._known:
            if len(self._known) >= _MAX_SERIES:
                field = OTHER
            else:
                self._known.add(field)
                logger.info(
                    "%s: the field %s has no effect here (said once; every answer to such a "
                    "request names it in %s)",
                    route,
                    field,
                    HEADER,
                )
        self._counter.labels(field).inc()


def note_ignored(request: Request, fields: Iterable[str]) -> None:
    """Say of fields that they have no effect, before the answer begins.

    Raises:
        BodyError: The server was told to be strict.
    """
    counts: IgnoredFields = request.app.state.ignored_fields
    for field in fields:
        if request.app.state.strict_fields:
            raise BodyError(f"{field} would have no effect on this server.", field)
        name = _printable(field)
        if say(request.scope, HEADER, name):
            counts.count(request.url.path, name)


def _printable(field: str) -> str:
    """A name as it may stand in a header and a log: clients choose it."""
    return "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in ", " else "?"
        for letter in field[:100]
    )
