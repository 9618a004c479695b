"""`caudal bench compare`: reports of load tests side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caudal.cli.output_file import checked_output, write_output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from caudal.bench.serving.comparison import Row
    from caudal.bench.serving.report import Report

_MOST_SHOWN = 100
"""Letters of a difference: chat templates are long."""


def compare(
    reports: Annotated[
        list[Path],
        typer.Argument(metavar="REPORT", help="Reports that `caudal bench serve --json` wrote."),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write the comparison there as a page with plots.", callback=checked_output
        ),
    ] = None,
) -> None:
    """Compare load tests: ratios to the first, what chance may do, and what differs in the setup.

    Measure, change something, send the same load again, and compare:

        caudal bench serve http://127.0.0.1:8000 --json before.json
        caudal bench serve http://127.0.0.1:8000 --json after.json --replay before.json
        caudal bench compare before.json after.json --html comparison.html

    Start the server anew before the second: it would have the prompts of the first in its cache.

    In brackets is what chance may do, 95 % of the time, if requests are drawn anew from those there
    were. What all requests of a run had in common isn't in it: run again to see that.
    """
    from caudal.bench.serving.comparison import compare as compared
    from caudal.bench.serving.comparison import differences
    from caudal.bench.serving.report import Report

    if len(reports) < 2:
        raise typer.BadParameter("Two reports or more can be compared.")
    named = dict(zip(_names(reports), map(Report.read, reports), strict=True))
    rows = compared([report.main_phase() for report in named.values()])
    _print(named, rows, differences(list(named.values())))
    if html is not None:
        from caudal.bench.serving.pages import comparison_page

        write_output(html, comparison_page(named).encode())


def _names(paths: list[Path]) -> list[str]:
    """Names of files, with their folders where they are the same otherwise."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names, 1)]
    return names


def _print(
    reports: Mapping[str, Report], rows: list[Row], differing: Mapping[str, list[str]]
) -> None:
    from rich.console import Console

    console = Console()
    table = _table(list(reports), rows)
    # Terminals wrap lines better than tables wrap cells.
    Console(width=console.measure(table, options=console.options.update(width=1000)).maximum).print(
        table
    )
    console.print()
    if not differing:
        console.print("nothing differs in load, server and machine, as far as they say")
        return
    console.print("what differs:")
    for name, values in differing.items():
        shown = (f"{v[:_MOST_SHOWN]}…" if len(v) > _MOST_SHOWN else v or "-" for v in values)
        line = f"  {name}: {' | '.join(shown)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(names: list[str], rows: list[Row]) -> Table:
    from rich.table import Table

    table = Table("", box=None, pad_edge=False)
    table.add_column(names[0], justify="right")
    for name in names[1:]:
        table.add_column(name, justify="right")
        table.add_column("ratio", justify="right", no_wrap=True)
        table.add_column("")
    for row in rows:
        first = row.figures[0]
        cells = [f"{row.name} ({row.unit})", "-" if first is None else f"{first.value:.4g}"]
        for figure, ratio in zip(row.figures[1:], row.ratios, strict=True):
            cells.append("-" if figure is None else f"{figure.value:.4g}")
            if ratio is None:
                cells += ["-", ""]
            else:
                bounds = f"({ratio.low:.2f} to {ratio.high:.2f})"
                cells += [f"{ratio.value:.2f} {bounds}", ratio.verdict]
        table.add_row(*cells)
    return table
