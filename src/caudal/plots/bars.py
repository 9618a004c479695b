"""Bars: a figure for each of some things, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from caudal.plots.axes import Axis, Scale
from caudal.plots.figure import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LETTER,
    RIGHT,
    TOP,
    Figure,
    color_class,
    upright_axis,
)
from caudal.plots.svg import element, path, text
from caudal.plots.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars of one colour.

    Attributes:
        name: For the legend; may be empty where a plot has one kind of bars.
        values: One for each category; None where there is none.
        intervals: What each may be by chance, (least, greatest), as whiskers; empty for none.
    """

    name: str
    values: Sequence[float | None]
    intervals: Sequence[tuple[float, float] | None] = ()


def bar_plot(
    title: str,
    categories: Sequence[str],
    bars: Sequence[Bars],
    y: Axis,
    *,
    note: str = "",
    stacked: bool = False,
    table: Table | None = None,
) -> Figure:
    """A group of bars for each category, from 0 on; `stacked`: on top of each other."""
    tops = [sum(max(v or 0.0, 0.0) for v in column) for column in _columns(bars)]
    values = tops if stacked else [v for each in bars for v in each.values if v is not None]
    ends = [end for each in bars for pair in each.intervals if pair for end in pair]
    y_scale = y.scale([0.0, *values, *ends], BOTTOM, TOP)
    zero = path([(LEFT, y_scale(0.0)), (RIGHT, y_scale(0.0))])
    parts = [upright_axis(y, y_scale), element("path", d=zero, class_="axis")]
    room = (RIGHT - LEFT) / max(1, len(categories))
    for place, category in enumerate(categories):
        left = LEFT + place * room
        parts.append(_name(left + room / 2, room, category))
        parts += _group(place, category, bars, y, y_scale, left, room, stacked)
    rows = [
        [category, *("" if value is None else y.format(value) for value in column)]
        for category, column in zip(categories, _columns(bars), strict=True)
    ]
    return Figure(
        title=title,
        note=note,
        drawing="".join(parts),
        height=HEIGHT - 10,
        legend=[(each.name, number) for number, each in enumerate(bars)],
        table=table or Table(headings=["", *(each.name or y.label for each in bars)], rows=rows),
    )


def _columns(bars: Sequence[Bars]) -> list[tuple[float | None, ...]]:
    return list(zip(*(each.values for each in bars), strict=True))


def _group(
    place: int,
    category: str,
    bars: Sequence[Bars],
    y: Axis,
    y_scale: Scale,
    left: float,
    room: float,
    stacked: bool,
) -> list[str]:
    width = 0.7 * room / (1 if stacked else len(bars))
    parts, below = [], 0.0
    for number, each in enumerate(bars):
        value = each.values[place]
        if value is None or not math.isfinite(value):
            continue
        at = left + 0.15 * room + (0 if stacked else number * width)
        ends = sorted((y_scale(below), y_scale(below + value)))
        name = f"{category}, {each.name}" if each.name else category
        parts.append(
            element(
                "rect",
                element("title", text(f"{name}: {y.format(value)}")),
                x=at,
                y=ends[0],
                width=max(width - 1, 1.0),
                height=ends[1] - ends[0],
                class_=f"bar {color_class(number)}",
            )
        )
        interval = each.intervals[place] if each.intervals else None
        if interval is not None:
            parts.append(_whisker(at + width / 2, y_scale(interval[0]), y_scale(interval[1])))
        if stacked:
            below += value
    return parts


def _whisker(x: float, low: float, high: float) -> str:
    lines = ([(x, low), (x, high)], [(x - 4, low), (x + 4, low)], [(x - 4, high), (x + 4, high)])
    return element("path", d="".join(map(path, lines)), class_="whisker")


def _name(x: float, room: float, category: str) -> str:
    """A category's name, as much of it as there is room for."""
    letters = max(3, int(room / LETTER))
    shown = category if len(category) <= letters else category[: letters - 1] + "…"
    return element(
        "text",
        element("title", text(category)) + text(shown),
        x=x,
        y=BOTTOM + 19,
        text_anchor="middle",
    )
