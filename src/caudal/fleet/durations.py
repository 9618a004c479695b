"""How long a model stays loaded, as users write it: `5m`, `1h30m`, 300, `0`, -1."""

from __future__ import annotations

import math
import re

FOREVER = math.inf
"""A model stays until it is told to go."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_NUMBER = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)
_MOST_CHARACTERS = 64

_MOST_SECONDS = 1e9
"""Some thirty years; integers in JSON may be larger than any float."""

FORMS = "a duration such as 5m or 1h30m, a number of seconds, 0 for none, or -1 for ever"


def keep_alive_seconds(given: str | float) -> float:
    """The seconds of a duration; what is below 0 is for ever.

    Numbers are seconds, and texts are durations as Go writes them, which is what Ollama takes.

    Raises:
        ValueError: It is none; the message says what is.
    """
    seconds = given if isinstance(given, int | float) else _parsed(given)
    if isinstance(given, bool) or seconds is None or seconds != seconds:
        raise ValueError(f"must be {FORMS}, but is {given!r:.80}")
    return FOREVER if seconds < 0 or seconds > _MOST_SECONDS else float(seconds)


def _parsed(text: str) -> float | None:
    text = text.strip()
    sign = -1 if text.startswith("-") else 1
    size = text[1:] if text[:1] in ("-", "+") else text
    if len(size) > _MOST_CHARACTERS:
        return None
    if _NUMBER.fullmatch(size):
        return sign * float(size)
    parts = list(_PART.finditer(size))
    if not parts or "".join(part[0] for part in parts) != size:
        return None
    return sign * sum(float(part[1]) * _UNITS[part[2]] for part in parts)


def duration_text(seconds: float) -> str:
    """Seconds in the largest units that say them about: `4 m 59 s`."""
    if seconds == FOREVER:
        return "for ever"
    whole = max(0, math.ceil(seconds))
    parts = (whole // 3600, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")
    shown = [f"{count} {unit}" for count, unit in parts if count][:2]
    return " ".join(shown) or "0 s"
