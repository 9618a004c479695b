"""A plot with its title, its axes and the table of what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caudal.plots.axes import Axis, Scale
from caudal.plots.svg import element, path, text
from caudal.plots.table import Table

WIDTH, HEIGHT = 720.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 694.0, 14.0, 292.0
"""Where the area between the axes is; it looks the same in all plots of a page."""

LETTER = 6.8
"""About the width of a letter."""

COLORS = 8
"""Colours that there are: classes `c0` to `c7` of the page."""

DASHES = (None, "7 3", "2 3", "9 3 2 3")
"""Not everybody tells colours apart: a curve's number shows in its line as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot.

    Attributes:
        title: What it shows.
        note: What to know when reading it; empty for nothing.
        drawing: The content of its `<svg>`.
        height: Units of its `<svg>`, which is `WIDTH` wide.
        legend: Names of what is in it, with the number of each one's colour.
        table: The same in numbers.
    """

    title: str
    note: str = ""
    drawing: str
    height: float = HEIGHT
    legend: Sequence[tuple[str, int]] = ()
    table: Table

    def to_html(self, number: int) -> str:
        """As markup; `number` is another one for each figure of a page."""
        title_id, note_id = f"figure-{number}", f"note-{number}"
        svg = element(
            "svg",
            element("title", text(self.title), id=title_id),
            element("desc", text(self.note), id=note_id) if self.note else "",
            self.drawing,
            viewBox=f"0 0 {WIDTH:.0f} {self.height:.0f}",
            role="img",
            aria_labelledby=f"{title_id} {note_id}" if self.note else title_id,
        )
        caption = element("strong", text(self.title))
        if self.note:
            caption += element("span", " " + text(self.note))
        names = [
            element("li", _sample(color), text(name))
            for name, color in self.legend
            if len(self.legend) > 1 or name
        ]
        legend = element("ul", *names, class_="legend") if names else ""
        numbers = element("details", element("summary", "In numbers"), self.table.to_html())
        return element("figure", element("figcaption", caption), legend, svg, numbers)


def color_class(number: int) -> str:
    """The class of the n-th curve's colour."""
    return f"c{number % COLORS}"


def dash(number: int) -> str | None:
    """The n-th curve's dashes: others than of the curve that has the same colour, too."""
    return DASHES[(number // COLORS + number) % len(DASHES)]


def axes(x: Axis, y: Axis, x_scale: Scale, y_scale: Scale) -> str:
    """Both axes with their numbers, their labels and the lines across."""
    parts = [upright_axis(y, y_scale)]
    for tick in x_scale.ticks:
        at = x_scale(tick)
        parts.append(element("path", d=path([(at, BOTTOM), (at, BOTTOM + 5)]), class_="axis"))
        parts.append(label(at, BOTTOM + 19, x.format(tick), "middle"))
    parts.append(element("path", d=path([(LEFT, BOTTOM), (RIGHT, BOTTOM)]), class_="axis"))
    parts.append(label((LEFT + RIGHT) / 2, BOTTOM + 39, x.label, "middle"))
    return "".join(parts)


def upright_axis(y: Axis, y_scale: Scale) -> str:
    """The axis that goes up: its numbers, its label and the lines across."""
    middle = (TOP + BOTTOM) / 2
    turned = f"translate(13 {middle:g}) rotate(-90)"
    parts = [element("text", text(y.label), text_anchor="middle", transform=turned)]
    for tick in y_scale.ticks:
        at = y_scale(tick)
        parts.append(element("path", d=path([(LEFT, at), (RIGHT, at)]), class_="grid"))
        parts.append(label(LEFT - 7, at + 4, y.format(tick), "end"))
    return "".join(parts)


def label(x: float, y: float, words: str, anchor: str) -> str:
    """Text in a plot."""
    return element("text", text(words), x=x, y=y, text_anchor=anchor)


def _sample(color: int) -> str:
    line = element(
        "path",
        d="M0,5L22,5",
        class_=f"line {color_class(color)}",
        stroke_dasharray=dash(color),
    )
    return element("svg", line, viewBox="0 0 22 10", class_="sample", aria_hidden="true")
