"""SVG and HTML as text: elements with what is in them escaped once."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def element(name: str, *content: str, **attributes: float | str | None) -> str:
    """An element around markup.

    Args:
        name: Its name.
        content: What is in it, as markup: `text` makes some of any string.
        attributes: Its attributes, those that are None left out; `_` stands for `-`, and one behind
            a name that Python has taken is dropped.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(content)
    return f"<{name}{written}>{inside}</{name}>"


def text(words: str) -> str:
    """A string as markup."""
    return escape(words, quote=False)


def path(points: Iterable[tuple[float, float]]) -> str:
    """The `d` of a path from point to point."""
    return "M" + "L".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _value(value: float | str) -> str:
    return escape(value) if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    """A tenth of a unit is less than anybody sees."""
    written = f"{value:.1f}"
    return written.removesuffix(".0")
