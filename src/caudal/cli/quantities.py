"""Numbers with units, as command lines have them."""

from __future__ import annotations

import re

import typer

_COUNT = re.compile(r"(?P<number>\d{1,30}(\.\d+)?)\s*(?P<unit>[KMGBT]?)", re.IGNORECASE)
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_RATE = re.compile(
    r"(?P<number>\d{1,30}(\.\d+)?)\s*(?P<unit>[KMGT])(?P<binary>i?)B?(/s)?", re.IGNORECASE
)


def count(text: str) -> float:
    """A number such as `70.6B`, `135M` or `1.2T`; units are decimal."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r:.80} is no number; write e.g. 70.6B or 135M")
    return float(match["number"]) * _UNITS[match["unit"].upper()]


def size(text: str) -> int:
    """Bytes of a size such as `24GiB`."""
    from caudal.errors import ParameterError
    from caudal.loading.options import parse_size

    try:
        return parse_size(text)
    except ParameterError as error:
        raise typer.BadParameter(str(error)) from error


def whole(text: str) -> int:
    """The same, of things that there are whole ones of only."""
    return round(count(text))


def operations(text: str) -> float:
    """Operations a second such as `90T`."""
    value = count(text)
    if value <= 0:
        raise typer.BadParameter("it must be more than 0")
    return value


def rate(text: str) -> float:
    """Bytes a second such as `100GB/s` or `93GiB/s`. Without a unit nobody would mean bytes."""
    match = _RATE.fullmatch(text.strip())
    value = 0.0
    if match is not None:
        thousand = 1024.0 if match["binary"] else 1000.0
        value = float(match["number"]) * thousand ** " KMGT".index(match["unit"].upper())
    if value <= 0:
        raise typer.BadParameter(f"{text!r:.80} is no rate; write e.g. 460GB/s")
    return value
