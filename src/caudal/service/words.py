"""The request's own words in what is said of it: they have no end of their own."""

from __future__ import annotations

MAX_MESSAGE = 4000
"""Most characters of an error's message."""

MAX_PARAM = 300
"""Most characters of the name of the field to blame."""


def shortened(text: str, length: int) -> str:
    """A text, or as much of it as `length` allows."""
    return text if len(text) <= length else text[: length - 1] + "…"
