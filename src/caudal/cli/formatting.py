"""Numbers as people read them."""

from __future__ import annotations

from datetime import datetime


def format_bytes(count: int) -> str:
    """A number of bytes in decimal units with three digits or so: `98.4 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or (unit == "B" and count < 1000):
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def format_count(count: int) -> str:
    """A number of things with three digits or so: `134.5 million`."""
    value = float(count)
    for unit in ("", " thousand", " million"):
        if value < 999.5:
            return f"{value:.0f}{unit}" if unit == "" or value >= 100 else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f} billion"


def format_age(moment: datetime, now: datetime) -> str:
    """How long ago something happened: `3 days ago`."""
    seconds = max(0, int((now - moment).total_seconds()))
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = seconds // length
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
