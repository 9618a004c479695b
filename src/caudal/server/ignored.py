"""What requests asked for that had no effect: said in a header, counted, and logged once."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter

from caudal.server.body_error import BodyError
from caudal.server.said import Said

HEADER = "x-caudal-ignored"


def ignored_fields(registry: CollectorRegistry) -> Said:
    """The fields that are taken without effect, by name.

    Args:
        registry: Where the counts are shown.
    """
    counter = Counter(
        "caudal_ignored_fields",
        "Fields of requests that were taken and had no effect.",
        ["field"],
        registry=registry,
    )
    line = (
        "%s: the field %s has no effect here (said once; every answer to such a request names it "
        f"in {HEADER})"
    )
    return Said(HEADER, counter, line)


def note_ignored(request: Request, fields: Iterable[str]) -> None:
    """Say of fields that they have no effect, before the answer begins.

    Raises:
        BodyError: The server was told to be strict.
    """
    if request.app.state.strict_fields:
        for field in fields:
            raise BodyError(f"{field} would have no effect on this server.", field)
    said: Said = request.app.state.ignored_fields
    said.say(request, map(_printable, fields))


def _printable(field: str) -> str:
    """A name as it may stand in a header and a log: clients choose it."""
    return "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in ", " else "?"
        for letter in field[:100]
    )
