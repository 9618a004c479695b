from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from caudal.plots import (
    Axis,
    Bars,
    Curve,
    Figure,
    Line,
    Section,
    Table,
    bar_plot,
    heatmap,
    line_plot,
    page,
    scatter_plot,
    short_number,
    step_plot,
)

X, Y = Axis(label="time (s)"), Axis(label="tokens a second")
CURVES = [
    Curve(name="a & b", points=[(0, 1), (1, 3), (2, 2)], band=[(0, 0, 2), (1, 2, 4)]),
    Curve(name="<c>", points=[(0, 5), (1, math.nan), (2, math.inf)]),
]

PLOTS = {
    "line": line_plot("Lines", CURVES, X, Y, lines=[Line(name="limit", at=4)], note="Of 3."),
    "step": step_plot("Steps", CURVES, X, Y, lines=[Line(name="1 s", at=1, upright=True)]),
    "scatter": scatter_plot("Points", CURVES, X, Axis(label="y", log=True)),
    "bars": bar_plot(
        "Bars",
        ["p50", "p99"],
        [
            Bars(name="A", values=[1, 2], intervals=[(0.5, 1.5), None]),
            Bars(name="B", values=[3, None]),
        ],
        Y,
    ),
    "heat": heatmap("Heat", ["1", "2"], ["x"], [[1, None]], x_label="users", y_label="context"),
    "long": heatmap(
        "Heat", ["1"], ["x"], [[1]], x_label="users", y_label="tokens of each conversation"
    ),
    "near": line_plot(
        "Lines",
        [Curve(name="", points=[(2000, 0), (9000, 50)])],
        Axis(label="tokens", log=True, format="{:,.0f}".format),
        Y,
        lines=[Line(name="23.6 GiB", at=23.6), Line(name="24 GiB", at=24)],
    ),
    "nothing": line_plot("Nothing", [Curve(name="", points=[])], X, Y),
}


class Document(HTMLParser):
    """Which elements there are, and whether each one ends where it should."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.started: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.started.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_stands_alone_and_says_what_each_plot_shows():
    table = Table(title="Setup", headings=["", "A"], rows=[["model", "<x>"]])
    html = page("A report", [Section(title="S", content=["Text & more", table, *PLOTS.values()])])
    document = Document(html)
    assert not re.search(r"https?://|<script|@import|url\(|src=", html)
    assert "prefers-color-scheme: dark" in html
    assert "&lt;x&gt;" in html
    ids = [attrs["id"] for _, attrs in document.started if "id" in attrs]
    assert len(ids) == len(set(ids))
    labelled = [attrs for tag, attrs in document.started if tag == "svg" and "role" in attrs]
    assert len(labelled) == len(PLOTS)
    for attrs in labelled:
        assert set((attrs["aria-labelledby"] or "").split()) <= set(ids)
    assert sum(tag == "details" for tag, _ in document.started) == len(PLOTS)


@pytest.mark.parametrize("name", PLOTS)
def test_everything_is_drawn_inside(name: str):
    figure = PLOTS[name]
    root = ElementTree.fromstring(f"<svg>{figure.drawing}</svg>")
    numbers = [
        (float(x), float(y))
        for path in root.iter("path")
        for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path.attrib["d"])
    ]
    numbers += [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter("circle")]
    numbers += [
        (float(r.attrib["x"]) + float(r.attrib["width"]), float(r.attrib["y"]))
        for r in root.iter("rect")
    ]
    assert numbers
    words: dict[float, list[tuple[float, float]]] = {}
    for each in root.iter("text"):
        size = 6 * len(each.text or "")
        before = {"start": 0.0, "middle": 0.5, "end": 1.0}[each.attrib["text-anchor"]] * size
        if "transform" in each.attrib:  # upright
            x, y = map(float, re.findall(r"[\d.]+", each.attrib["transform"])[:2])
            numbers += [(x, y - size / 2), (x, y + size / 2)]
        else:
            x, y = float(each.attrib["x"]), float(each.attrib["y"])
            words.setdefault(round(y / 8), []).append((x - before, x - before + size))
    assert all(
        end <= begin for row in words.values() for (_, end), (begin, _) in pairwise(sorted(row))
    )
    numbers += [(x, 0) for row in words.values() for ends in row for x in ends]
    assert all(0 <= x <= 720 and 0 <= y <= figure.height for x, y in numbers)


def test_tables_say_what_plots_show():
    assert PLOTS["line"].table.rows == [["0", "1", "5"], ["1", "3", ""], ["2", "2", ""]]
    assert PLOTS["bars"].table.rows == [["p50", "1", "3"], ["p99", "2", ""]]
    assert PLOTS["heat"].table.rows == [["x", "1", ""]]


def test_larger_values_are_higher_and_further_right():
    def circles(figure: Figure) -> list[tuple[float, float]]:
        root = ElementTree.fromstring(f"<svg>{figure.drawing}</svg>")
        return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter("circle")]

    points = Curve(name="", points=[(1, 1), (10, 10), (100, 100)])
    log = Axis(label="", log=True)
    for axis in (Axis(label=""), log):
        first, second, third = circles(scatter_plot("", [points], axis, axis))
        assert first[0] < second[0] < third[0]
        assert first[1] > second[1] > third[1]
    first, second, third = circles(scatter_plot("", [points], log, log))
    assert second[0] - first[0] == pytest.approx(third[0] - second[0], abs=0.11)


def test_many_points_make_no_large_file():
    points = [(n / 1000, math.sin(n)) for n in range(100_000)]
    figure = line_plot("", [Curve(name="", points=points)], X, Y)
    assert len(figure.drawing) < 30_000
    assert len(figure.table.rows) <= 60
    assert figure.table.rows[-1][0] == "100"


@pytest.mark.parametrize(
    ("axis", "values", "ticks"),
    [
        (Axis(label=""), [0, 10], [0, 2, 4, 6, 8, 10]),
        (Axis(label=""), [97, 103], [97, 98, 99, 100, 101, 102, 103]),
        (Axis(label=""), [3, 10], [0, 2, 4, 6, 8, 10]),
        (Axis(label=""), [0.1, 0.3], [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]),
        (Axis(label=""), [-1, 1], [-1, -0.5, 0, 0.5, 1]),
        (Axis(label=""), [], [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Axis(label=""), [0, 0], [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Axis(label="", high=1, low=0), [0.4], [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Axis(label="", log=True), [1, 90], [1, 2, 5, 10, 20, 50, 100]),
        (Axis(label="", log=True), [1, 1e6], [1, 10, 100, 1000, 1e4, 1e5, 1e6]),
        (Axis(label="", log=True), [5], [5, 10]),
        (Axis(label="", log=True), [0, 10], [0, 2, 4, 6, 8, 10]),  # 0 has no logarithm
    ],
)
def test_round_numbers_stand_at_an_axis(axis: Axis, values: list[float], ticks: list[float]):
    scale = axis.scale(values, 0, 100)
    assert scale.ticks == pytest.approx(ticks)
    assert all(0 <= scale(value) <= 100 for value in values)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0, "0"), (0.00125, "0.00125"), (12.5, "12.5"), (999.6, "1000"), (1234, "1234")),
        *((128_000, "128k"), (1_500_000, "1.5M"), (2e9, "2G"), (-3.14159, "-3.14"), (100, "100")),
        *((math.inf, "inf"), (0.1 + 0.2, "0.3")),
    ],
)
def test_short_numbers(value: float, shown: str):
    assert short_number(value) == shown
