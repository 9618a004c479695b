"""Plots of points over an axis of numbers: lines, steps (distributions), and points alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypedDict, TypeVar, Unpack

from caudal.plots.axes import Axis, Scale
from caudal.plots.figure import (
    BOTTOM,
    LEFT,
    LETTER,
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

_T = TypeVar("_T")


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


class Besides(TypedDict, total=False):
    """What a plot of curves may have besides: words below it, lines across it, other numbers."""

    note: str
    lines: Sequence[Line]
    table: Table


def line_plot(
    title: str, curves: Sequence[Curve], x: Axis, y: Axis, **besides: Unpack[Besides]
) -> Figure:
    """Points connected by straight lines; `table` says the same in numbers, or is made of them."""
    return _plot(title, curves, x, y, _connected, **besides)


def step_plot(
    title: str, curves: Sequence[Curve], x: Axis, y: Axis, **besides: Unpack[Besides]
) -> Figure:
    """Points whose y holds until the next one's x, as in a cumulative distribution."""
    return _plot(title, curves, x, y, _steps, **besides)


def scatter_plot(
    title: str, curves: Sequence[Curve], x: Axis, y: Axis, **besides: Unpack[Besides]
) -> Figure:
    """Points alone, as many as there are."""
    return _plot(title, curves, x, y, _points, **besides)


@dataclass(frozen=True, slots=True)
class _Area:
    """Where curves are drawn: the axes, and how far they go."""

    x: Axis
    y: Axis
    x_scale: Scale
    y_scale: Scale

    def place(self, points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        """The coordinates of points."""
        return [(self.x_scale(a), self.y_scale(b)) for a, b in points]


def _plot(
    title: str,
    curves: Sequence[Curve],
    x: Axis,
    y: Axis,
    draw: Callable[[int, Curve, _Area], str],
    *,
    note: str = "",
    lines: Sequence[Line] = (),
    table: Table | None = None,
) -> Figure:
    area = _area(curves, x, y, lines)
    drawn = [draw(number, curve, area) for number, curve in enumerate(curves)]
    marks = _marks(lines, area.x_scale, area.y_scale)
    return Figure(
        title=title,
        note=note,
        drawing="".join([axes(x, y, area.x_scale, area.y_scale), *drawn, *marks]),
        legend=[(curve.name, number) for number, curve in enumerate(curves)],
        table=table or _table(curves, x, y),
    )


def _area(curves: Sequence[Curve], x: Axis, y: Axis, lines: Sequence[Line]) -> _Area:
    points = [point for curve in curves for point in curve.finite]
    bands = [each for curve in curves for each in curve.band]
    xs = [a for a, _ in points] + [line.at for line in lines if line.upright]
    ys = [b for _, b in points] + [line.at for line in lines if not line.upright]
    ys += [end for _, least, most in bands for end in (least, most)]
    return _Area(x, y, x.scale(xs, LEFT, RIGHT), y.scale(ys, BOTTOM, TOP))


def _thinned(values: Sequence[_T], most: int) -> Sequence[_T]:
    """So many of them at most, evenly, the first and the last among them."""
    if len(values) <= most:
        return values
    last = len(values) - 1
    return [values[round(n * last / (most - 1))] for n in range(most)]


def _connected(number: int, curve: Curve, area: _Area) -> str:
    points = area.place(_thinned(curve.finite, _MOST_POINTS))
    return _band(number, curve, area) + _curve(number, points) + _dots(number, curve, area)


def _steps(number: int, curve: Curve, area: _Area) -> str:
    points = area.place(_thinned(curve.finite, _MOST_POINTS))
    corners = [(b[0], a[1]) for a, b in pairwise(points)]
    both = [each for pair in zip(points, corners, strict=False) for each in pair]
    return _curve(number, both + points[-1:])


def _points(number: int, curve: Curve, area: _Area) -> str:
    of_curve = f"dot {color_class(number)}"
    return "".join(
        element("circle", cx=at, cy=height, r=2.6, class_=of_curve)
        for at, height in area.place(curve.finite)
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


def _band(number: int, curve: Curve, area: _Area) -> str:
    if not curve.band:
        return ""
    there = [(a, least) for a, least, _ in curve.band]
    back = [(a, most) for a, _, most in reversed(curve.band)]
    around = path(area.place(there + back))
    return element("path", d=around, class_=f"band {color_class(number)}")


def _dots(number: int, curve: Curve, area: _Area) -> str:
    if len(curve.finite) > _MOST_DOTS:
        return ""
    name = f"{curve.name}: " if curve.name else ""
    return "".join(
        element(
            "circle",
            element("title", text(f"{name}{area.x.format(a)}, {area.y.format(b)}")),
            cx=area.x_scale(a),
            cy=area.y_scale(b),
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
            named.append((at, right - LETTER * (len(line.name) + 1)))
            ends, words = [(LEFT, at), (RIGHT, at)], label(right, at - 5, line.name, "end")
        yield element("path", d=path(ends), class_="mark") + words


def _table(curves: Sequence[Curve], x: Axis, y: Axis) -> Table:
    """A row for each x, or for some of them where there are many."""
    known = [dict(curve.finite) for curve in curves]
    places = _thinned(sorted({a for points in known for a in points}), _MOST_ROWS)
    rows = [
        [x.format(a), *(y.format(points[a]) if a in points else "" for points in known)]
        for a in places
    ]
    return Table(headings=[x.label, *(curve.name or y.label for curve in curves)], rows=rows)
