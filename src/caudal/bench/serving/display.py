"""What a terminal shows of a load: how far it is, and what came of it."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from caudal.bench.serving.report import Phase, Report
from caudal.bench.serving.runner import Progress
from caudal.bench.serving.statistics import STATISTICS

_WINDOW = 3.0
"""Seconds of which the current rate is the mean."""


class ProgressLine:
    """How far a load is, in one line that is made anew whenever it is shown."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._seen: deque[tuple[float, int, int]] = deque()

    def __rich__(self) -> Text:
        progress, now = self._progress, time.perf_counter()
        if self._seen and progress.ended < self._seen[-1][1]:
            self._seen.clear()  # another phase
        self._seen.append((now, progress.ended, progress.output_tokens))
        while len(self._seen) > 1 and now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        when, ended, tokens = self._seen[0]
        seconds = max(now - when, 1e-9)
        of = "" if progress.expected is None else f" of {progress.expected}"
        if progress.until is not None:
            of = f", {now - progress.began:.0f} of {progress.until:.0f} s"
        words = [
            f"{progress.phase or 'asking the server what it is'}: {progress.ended}{of}",
            f"{progress.sent - progress.ended} running",
        ]
        if len(self._seen) > 1:
            words.append(f"{(progress.ended - ended) / seconds:.1f} requests/s")
            words.append(f"{(progress.output_tokens - tokens) / seconds:.0f} output tok/s")
        line = Text("  ".join(words))
        if progress.errors:
            kinds = ", ".join(f"{count}x {kind}" for kind, count in progress.errors.items())
            line.append(f"  failed: {kinds}", style="red")
        return line


@contextlib.contextmanager
def shown(progress: Progress, console: Console) -> Iterator[None]:
    """Show progress meanwhile, where the console is a terminal."""
    if not console.is_terminal:
        yield
        return
    with Live(ProgressLine(progress), console=console, refresh_per_second=4, transient=True):
        yield


def print_report(report: Report, console: Console) -> None:
    """A report in some lines and a table for each phase."""
    target = report.target
    what = " ".join(filter(None, (target.program, target.version)))
    console.print(f"{target.model} at {target.url} ({what})", markup=False, highlight=False)
    if len(report.phases) > 1 and report.settings.sweep is not None:
        _print(console, _sweep_table(report))
    for phase in _shown_phases(report):
        console.print()
        for name, value in _lines(report, phase).items():
            console.print(f"{name:<14} {value}", markup=False, highlight=False, soft_wrap=True)
        _print(console, _latency_table(phase))
    if report.settings.sweep is not None and report.settings.slos:
        best = "none" if report.best_rate is None else f"{report.best_rate:g} requests/s"
        console.print(f"\ngreatest rate that keeps {', '.join(report.settings.slos)}: {best}")
    if not report.complete:
        console.print("\nbroken off: the figures are of what came until then")


def _shown_phases(report: Report) -> list[Phase]:
    if report.settings.sweep is None or not report.phases:
        return report.phases
    return [report.main_phase()]


def _print(console: Console, table: Table) -> None:
    console.print()
    console.print(table)


def _lines(report: Report, phase: Phase) -> dict[str, str]:
    summary = phase.summary
    lines = {
        phase.name: f"{summary.requests}, {summary.failed} failed, in {summary.seconds:.1f} s",
        "requests": f"{summary.request_rate:.2f} a second",
        "all tokens": f"{summary.total_rate:.0f} tok/s",
        "output tokens": f"{summary.output_rate:.0f} tok/s",
    }
    if summary.unfinished:
        lines["given up"] = str(summary.unfinished)
    if summary.hit_rate is not None:
        lines["prefix hits"] = f"{summary.hit_rate:.1%} of {summary.prompt_tokens} prompt tokens"
        if _were_known(report, phase):
            lines["prefix hits"] += ": the server has seen this load before; --seed makes another"
    if summary.goodput is not None:
        lines["goodput"] = f"{summary.goodput:.2f} requests/s kept all SLOs"
        for promise, seconds in phase.slos.items():
            was = "too many failed" if seconds is None else f"{1000 * seconds:.4g} ms"
            lines[f"  {promise}"] = was
    price = report.price(phase)
    if price is not None:
        lines["price"] = f"{price[0]:.3g} for a million output tokens, {price[1]:.3g} of all"
    if phase.joules is not None:
        each = phase.joules / max(1, summary.output_tokens)
        lines["energy"] = f"{phase.joules:.0f} J, {each:.3g} J per output token"
    lines["client"] = (
        f"{phase.client.share:.1%} of a processor, "
        f"{phase.client.microseconds_per_event:.0f} µs per token"
    )
    failures = {
        f"failed {each.count}x": f"{kind}: {each.example}" for kind, each in summary.errors.items()
    }
    return lines | failures


def _were_known(report: Report, phase: Phase) -> bool:
    """Whether a server has had most of prompts that are random, and so can't be its cache's."""
    return (
        report.settings.workload == "random"
        and not report.settings.prefixes
        and phase.name != "warm-prefix"
        and (phase.summary.hit_rate or 0.0) > 0.5
    )


def _latency_table(phase: Phase) -> Table:
    table = Table("ms", box=None, pad_edge=False)
    for name in STATISTICS:
        table.add_column(name, justify="right")
    summary = phase.summary
    rows = {
        "first token": summary.ttft,
        "between tokens": summary.itl,
        "per token": summary.tpot,
        "end to end": summary.e2e,
        "server's queue": phase.queue or {},
        "late to send": summary.late if phase.rate is not None else {},
    }
    for name, figures in rows.items():
        if figures:
            cells = (figures.get(each) for each in STATISTICS)
            table.add_row(name, *("" if v is None else f"{1000 * v:.1f}" for v in cells))
    return table


def _sweep_table(report: Report) -> Table:
    table = Table("rate", box=None, pad_edge=False)
    for heading in ("done/s", "good/s", "tok/s out", "ttft p50", "p95", "itl p50", "p99", "SLOs"):
        table.add_column(heading, justify="right")
    for phase in report.phases:
        summary = phase.summary
        latencies = [
            summary.ttft.get("p50"),
            summary.ttft.get("p95"),
            summary.itl.get("p50"),
            summary.itl.get("p99"),
        ]
        table.add_row(
            f"{phase.rate:g}",
            f"{summary.request_rate:.2f}",
            "" if summary.goodput is None else f"{summary.goodput:.2f}",
            f"{summary.output_rate:.0f}",
            *("-" if value is None else f"{1000 * value:.1f}" for value in latencies),
            {True: "kept", False: "broken", None: ""}[phase.slos_hold],
        )
    return table
