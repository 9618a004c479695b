"""A plan as a page with plots and tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from caudal.cli.plan_text import (
    headline,
    kept_lines,
    serve_command,
    speed_lines,
    table_rows,
    verdict,
)
from caudal.planning.arithmetic import binary
from caudal.planning.plan import Planner
from caudal.planning.report import GIB, MEMORIES, Report, contexts
from caudal.planning.speed import expected_speed
from caudal.plots import (
    Axis,
    Curve,
    Figure,
    Line,
    Section,
    Table,
    heatmap,
    line_plot,
    page,
)

_USERS = (1, 2, 4, 8, 16, 32, 64, 128)
_CURVES = (1, 4, 16, 64)


def plan_page(report: Report) -> str:
    """The page, as HTML in one file."""
    sections = [
        Section(
            title="Does it fit?",
            content=[*map(str.strip, verdict(report)), *kept_lines(report)],
        ),
        Section(title="The arithmetic", content=[_of_model(report), _of_demand(report)]),
        Section(
            title="Users and context", content=[_users(report), _memory(report), _heat(report)]
        ),
    ]
    if report.speed is not None:
        content: list[str | Table | Figure] = [line.strip() for line in speed_lines(report)]
        sections.append(Section(title="How fast", content=[*content, _speed(report)]))
    if report.flags:
        sections.append(Section(title="To serve it", content=[serve_command(report)]))
    return page(f"Plan of {report.figures.name}", sections, lead=headline(report))


def _of_model(report: Report) -> Table:
    rows = [
        [line.what, line.how, f"{binary(line.bytes)} {line.unit}".strip()]
        for line in report.of_model
    ]
    return Table(title="A token", headings=["", "how", "takes"], rows=rows, words=True)


def _of_demand(report: Report) -> Table:
    rows = [[line.what, line.how, binary(line.bytes)] for line in report.of_demand]
    rows.append(["together", "", binary(report.needs.total)])
    return Table(title="All of it", headings=["", "how", "takes"], rows=rows, words=True)


def _users(report: Report) -> Table:
    headings, rows = table_rows(report)
    return Table(title="Users that have room", headings=headings, rows=rows)


def _memory(report: Report) -> Figure:
    """What it takes by context, for some numbers of users."""
    lengths = contexts(report.figures, report.demand)
    curves = [
        Curve(
            name="one user" if users == 1 else f"{users} users",
            points=[(context, _total(report, context, users)) for context in lengths],
        )
        for users in sorted({*_CURVES, report.demand.users})
    ]
    most = max(y for curve in curves for _, y in curve.points)
    planner = Planner(report.figures)
    lines = [
        Line(name=binary(memory), at=usable)
        for memory in sorted({*MEMORIES, report.memory})
        if 0 < (usable := planner.usable(memory) / GIB) <= 2 * most
    ]
    return line_plot(
        "Memory by context",
        curves,
        Axis(label="tokens of each conversation", log=True, format=lambda value: f"{value:,.0f}"),
        Axis(label="GiB", log=True),
        note="Weights, keys and values, states and workspace. Lines across: what a model may take "
        "of so much memory.",
        lines=lines,
    )


def _heat(report: Report) -> Figure:
    lengths = contexts(report.figures, report.demand)
    return heatmap(
        "Memory by users and context",
        [str(users) for users in _USERS],
        [f"{context:,}" for context in lengths],
        [[_total(report, context, users) for users in _USERS] for context in lengths],
        x_label="users",
        y_label="tokens of each conversation",
        format=lambda value: f"{value:.3g} GiB",
        log=True,
    )


def _speed(report: Report) -> Figure:
    """Tokens a second by users: for each of them, and for all."""
    return line_plot(
        "Tokens a second, at most",
        [
            Curve(name=name, points=list(_speeds(report, together=together)))
            for name, together in (("for each user", False), ("for all", True))
        ],
        Axis(label="users", log=True, format=lambda value: f"{value:g}"),
        Axis(label="tokens a second", log=True),
        note=f"At the end of {report.demand.context:,} tokens, by what has to be read from memory.",
    )


def _speeds(report: Report, *, together: bool) -> Iterator[tuple[float, float]]:
    assert report.machine is not None
    planner = Planner(report.figures)
    for users in _USERS:
        speed = expected_speed(planner, replace(report.demand, users=users), report.machine)
        yield users, speed.together if together else speed.each


def _total(report: Report, context: int, users: int) -> float:
    shared = min(report.demand.shared_prefix, context)
    demand = replace(report.demand, context=context, users=users, shared_prefix=shared)
    return Planner(report.figures).needs(demand).total / GIB
