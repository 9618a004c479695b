"""Plots of points over an axis of numbers: lines, steps (distributions), and points alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from caudal.plots.axes import Axis, Scale
from caudal.plots.figure import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Figure,
    axes,
    color_class,
    dash,
    label,
)
from caudal.plots.svg import element, path, text
from caudal.plots.table import Table

_MOST_POINTS = 600
"""Points of a curve that are drawn: more than there are pixels only make files large."""

_MOST_DOTS = 60
"""Up to so many points each has a dot, which says its values when it is pointed at."""

_MOST_ROWS = 60

_NAME_HEIGHT = 14.0
_LETTER = 6.8
"""About the width of a letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve of a plot.

    Attributes:
        name: For the legend; may be empty where a plot has one.
        points: (x, y) in the order in which they are connected. What isn't finite is left out.
        band: (x, least y, greatest y) that are shaded around it, such as what chance allows.
    """

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()

    @property
    def finite(self) -> Sequence[tuple[float, float]]:
        """The points that can be drawn."""
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line across a plot that marks a value, such as a limit.

    Attributes:
        name: What stands at it.
        at: The value.
        upright: Whether `at` is on the x axis, not on the y axis.
    """

    name: str
    at: float
    upright: bool = False


def line_plot(
    title: str,
    curves: Sequence[Curve],
    x: Axis,
    y: Axis,
    *,
    note: str = "",
    lines: Sequence[Line] = (),
    table: Table | None = None,
) -> Figure:
    """Points connected by straight lines; `table` says the same in numbers, or is made of them."""
    x_scale, y_scale = _scales(curves, x, y, lines)
    drawn = []
    for number, curve in enumerate(curves):
        points = [(x_scale(a), y_scale(b)) for a, b in thinned(curve.finite)]
        drawn += [_band(number, curve, x_scale, y_scale), _curve(number, points)]
        drawn.append(_dots(number, curve, x, y, x_scale, y_scale))
    return _figure(title, note, curves, x, y, (x_scale, y_scale), lines, drawn, table)


def step_plot(
    title: str,
    curves: Sequence[Curve],
    x: Axis,
    y: Axis,
    *,
    note: str = "",
    lines: Sequence[Line] = (),
    table: Table | None = None,
) -> Figure:
    """Points whose y holds until the next one's x, as in a cumulative distribution."""
    x_scale, y_scale = _scales(curves, x, y, lines)
    drawn = []
    for number, curve in enumerate(curves):
        points = [(x_scale(a), y_scale(b)) for a, b in thinned(curve.finite)]
        corners = [(b[0], a[1]) for a, b in pairwise(points)]
        both = [each for pair in zip(points, corners, strict=False) for each in pair]
        drawn.append(_curve(number, both + points[-1:]))
    return _figure(title, note, curves, x, y, (x_scale, y_scale), lines, drawn, table)


def scatter_plot(
    title: str,
    curves: Sequence[Curve],
    x: Axis,
    y: Axis,
    *,
    note: str = "",
    lines: Sequence[Line] = (),
    table: Table | None = None,
) -> Figure:
    """Points alone, as many as there are."""
    x_scale, y_scale = _scales(curves, x, y, lines)
    drawn = [
        element("circle", cx=x_scale(a), cy=y_scale(b), r=2.6, class_=f"dot {color_class(number)}")
        for number, curve in enumerate(curves)
        for a, b in curve.finite
    ]
    return _figure(title, note, curves, x, y, (x_scale, y_scale), lines, drawn, table)


def thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """So few points that a plot can do with them, the first and the last among them."""
    if len(points) <= _MOST_POINTS:
        return points
    last = len(points) - 1
    return [points[round(n * last / (_MOST_POINTS - 1))] for n in range(_MOST_POINTS)]


def _scales(
    curves: Sequence[Curve], x: Axis, y: Axis, lines: Sequence[Line]
) -> tuple[Scale, Scale]:
    points = [point for curve in curves for point in curve.finite]
    bands = [each for curve in curves for each in curve.band]
    xs = [a for a, _ in points] + [line.at for line in lines if line.upright]
    ys = [b for _, b in points] + [line.at for line in lines if not line.upright]
    ys += [end for _, least, most in bands for end in (least, most)]
    return x.scale(xs, LEFT, RIGHT), y.scale(ys, BOTTOM, TOP)


def _figure(
    title: str,
    note: str,
    curves: Sequence[Curve],
    x: Axis,
    y: Axis,
    scales: tuple[Scale, Scale],
    lines: Sequence[Line],
    drawn: Sequence[str],
    table: Table | None,
) -> Figure:
    marks = "".join(_marks(lines, *scales))
    return Figure(
        title=title,
        note=note,
        drawing=axes(x, y, *scales) + "".join(drawn) + marks,
        legend=[(curve.name, number) for number, curve in enumerate(curves)],
        table=table or _table(curves, x, y),
    )


def _curve(number: int, points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    return element(
        "path",
        d=path(points),
        class_=f"line {color_class(number)}",
        stroke_dasharray=dash(number),
    )


def _band(number: int, curve: Curve, x_scale: Scale, y_scale: Scale) -> str:
    if not curve.band:
        return ""
    there = [(x_scale(a), y_scale(least)) for a, least, _ in curve.band]
    back = [(x_scale(a), y_scale(most)) for a, _, most in reversed(curve.band)]
    return element("path", d=path(there + back), class_=f"band {color_class(number)}")


def _dots(number: int, curve: Curve, x: Axis, y: Axis, x_scale: Scale, y_scale: Scale) -> str:
    if len(curve.finite) > _MOST_DOTS:
        return ""
    name = f"{curve.name}: " if curve.name else ""
    return "".join(
        element(
            "circle",
            element("title", text(f"{name}{x.format(a)}, {y.format(b)}")),
            cx=x_scale(a),
            cy=y_scale(b),
            r=3.2,
            class_=f"dot {color_class(number)}",
        )
        for a, b in curve.finite
    )


def _marks(lines: Sequence[Line], x_scale: Scale, y_scale: Scale) -> Iterator[str]:
    """Lines across, with names that don't lie on each other."""
    named: list[tuple[float, float]] = []  # how high a name is, and where it begins
    for line in lines:
        if line.upright:
            at = x_scale(line.at)
            ends, words = [(at, TOP), (at, BOTTOM)], label(at - 5, TOP + 10, line.name, "end")
        else:
            at = y_scale(line.at)
            near = [begin for height, begin in named if abs(height - at) < _NAME_HEIGHT]
            right = min(near, default=RIGHT)
            named.append((at, right - _LETTER * (len(line.name) + 1)))
            ends, words = [(LEFT, at), (RIGHT, at)], label(right, at - 5, line.name, "end")
        yield element("path", d=path(ends), class_="mark") + words


def _table(curves: Sequence[Curve], x: Axis, y: Axis) -> Table:
    """A row for each x, or for some of them where there are many."""
    known = [dict(curve.finite) for curve in curves]
    places = sorted({a for points in known for a in points})
    if len(places) > _MOST_ROWS:
        last = len(places) - 1
        places = [places[round(n * last / (_MOST_ROWS - 1))] for n in range(_MOST_ROWS)]
    rows = [
        [x.format(a), *(y.format(points[a]) if a in points else "" for points in known)]
        for a in places
    ]
    return Table(headings=[x.label, *(curve.name or y.label for curve in curves)], rows=rows)
