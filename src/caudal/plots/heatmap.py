"""Heatmaps: a value for each pair of two things, as a colour and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from caudal.plots.axes import short_number
from caudal.plots.figure import LETTER, RIGHT, Figure, label
from caudal.plots.svg import element, text
from caudal.plots.table import Table

_ROW = 30.0

_STRONGEST = 0.75
"""How much colour the greatest value has: the words in it are read on lighter and darker alike."""


def heatmap(
    title: str,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    x_label: str,
    y_label: str,
    format: Callable[[float], str] = short_number,  # noqa: A002 - as `Axis` has it
    note: str = "",
    log: bool = False,
) -> Figure:
    """Cells in colours.

    Args:
        title: What it shows.
        columns: Names, from left to right.
        rows: Names, from the top.
        values: A row of values for each of `rows`; a None is an empty cell.
        x_label: What the columns are.
        y_label: What the rows are.
        format: How a value is written.
        note: What to know when reading it.
        log: Whether twice the value is as much more colour wherever it is; for positive values.
    """
    known = [v for row in values for v in row if v is not None and math.isfinite(v)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    log = log and low > 0

    def strength(value: float) -> float:
        if not low < high:
            return 0.5
        if log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    left = 40 + LETTER * max(map(len, rows), default=0)
    top = 44.0
    width = (RIGHT - left) / max(1, len(columns))
    bottom = top + _ROW * len(rows)
    if LETTER * len(y_label) < bottom:
        upright = f"translate(13 {bottom / 2:g}) rotate(-90)"
        beside = element("text", text(y_label), text_anchor="middle", transform=upright)
    else:  # longer than the rows are high
        beside = label(0, 14, y_label, "start")
    parts = [label((left + RIGHT) / 2, 14, x_label, "middle"), beside]
    parts += [
        label(left + (place + 0.5) * width, top - 8, name, "middle")
        for place, name in enumerate(columns)
    ]
    for line, (name, row) in enumerate(zip(rows, values, strict=True)):
        y = top + line * _ROW
        parts.append(label(left - 8, y + 0.5 * _ROW + 4, name, "end"))
        for place, (column, value) in enumerate(zip(columns, row, strict=True)):
            if value is None:
                continue
            x = left + place * width
            share = strength(value) if math.isfinite(value) else 1.0
            parts.append(
                element(
                    "rect",
                    element("title", text(f"{name}, {column}: {format(value)}")),
                    x=x + 1,
                    y=y + 1,
                    width=width - 2,
                    height=_ROW - 2,
                    fill_opacity=f"{0.08 + share * (_STRONGEST - 0.08):.2f}",
                    class_="cell",
                )
            )
            parts.append(label(x + width / 2, y + 0.5 * _ROW + 4, format(value), "middle"))
    cells = [
        [name, *("" if value is None else format(value) for value in row)]
        for name, row in zip(rows, values, strict=True)
    ]
    return Figure(
        title=title,
        note=note,
        drawing="".join(parts),
        height=bottom + 10,
        table=Table(headings=[f"{y_label} \\ {x_label}", *columns], rows=cells),
    )
