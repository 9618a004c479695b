"""A report, or several side by side, as a page with plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from caudal.bench.serving.answers import Answer
from caudal.bench.serving.comparison import Row, compare, differences, setup
from caudal.bench.serving.report import Phase, Report
from caudal.bench.serving.statistics import STATISTICS
from caudal.plots import (
    Axis,
    Bars,
    Curve,
    Figure,
    Line,
    Section,
    Table,
    bar_plot,
    line_plot,
    page,
    scatter_plot,
    short_number,
    step_plot,
)

METRICS = {
    "ttft": "time to first token",
    "itl": "time between tokens",
    "tpot": "mean time per token of a request",
    "e2e": "time to the end",
}

_SHARE = Axis(label="share", low=0, high=1)

_BINS = 60
"""Parts of a timeline."""


def report_page(report: Report) -> str:
    """One report."""
    named = {phase.name: phase for phase in report.phases}
    sections = [Section(title="Figures", content=[_figures(report, named)])]
    if report.settings.sweep is not None:
        sections.append(Section(title="Rates", content=_sweep({"": report})))
    if report.phases:
        shown = {report.main_phase().name: report.main_phase()} if len(named) > 3 else named
        sections.append(Section(title="Distributions", content=distributions(shown)))
        sections.append(Section(title="Timeline", content=timeline(shown)))
    failures = _failures(named)
    if failures is not None:
        sections.append(Section(title="Failures", content=[failures]))
    sections.append(Section(title="Setup", content=[setup_table(report)]))
    lead = f"{report.target.model} at {report.target.url}, {report.created}"
    if not report.complete:
        lead += "; broken off, so the figures are of what came until then"
    return page(f"Load test: {report.settings.workload}", sections, lead=lead)


def comparison_page(reports: Mapping[str, Report]) -> str:
    """Several reports side by side, the first being what the others are compared with."""
    phases = {name: report.main_phase() for name, report in reports.items()}
    rows = compare(list(phases.values()))
    content: list[str | Table | Figure] = [
        _ratio_table(list(reports), rows),
        _ratio_bars(reports, rows),
    ]
    sections = [Section(title="Ratios", content=content)]
    if all(report.settings.sweep is not None for report in reports.values()):
        sections.append(Section(title="Rates", content=_sweep(reports)))
    sections.append(Section(title="Distributions", content=distributions(phases)))
    sections.append(Section(title="Timeline", content=timeline(phases)))
    differ = [[name, *values] for name, values in differences(list(reports.values())).items()]
    table = Table(headings=["", *reports], rows=differ, words=True)
    sections.append(Section(title="What differs", content=[table if differ else "Nothing."]))
    return page("Load tests side by side", sections, lead=NOISE)


NOISE = (
    "In brackets is what chance may do, 95 % of the time, if requests are drawn anew from those "
    "there were. What all requests of a run had in common isn't in it: run again to see that."
)


def _ratio_table(names: Sequence[str], rows: Sequence[Row]) -> Table:
    headings = ["", names[0]]
    for name in names[1:]:
        headings += [name, f"{name} / {names[0]}", ""]
    lines = []
    for row in rows:
        cells = [
            f"{row.name} ({row.unit})",
            _short(row.figures[0].value if row.figures[0] else None),
        ]
        for figure, ratio in zip(row.figures[1:], row.ratios, strict=True):
            cells.append(_short(figure.value if figure else None))
            if ratio is None:
                cells += ["", ""]
            else:
                bounds = f"({ratio.low:.2f} to {ratio.high:.2f})"
                cells += [f"{ratio.value:.2f} {bounds}", ratio.verdict]
        lines.append(cells)
    return Table(headings=headings, rows=lines)


def _ratio_bars(reports: Mapping[str, Report], rows: Sequence[Row]) -> Figure:
    shown = [row for row in rows if row.name.split()[-1] in ("p50", "p99", "tokens")]
    bars = [
        Bars(
            name=name,
            values=[ratio.value if (ratio := row.ratios[place]) else None for row in shown],
            intervals=[
                (ratio.low, ratio.high) if (ratio := row.ratios[place]) else None for row in shown
            ],
        )
        for place, name in enumerate(list(reports)[1:])
    ]
    first = next(iter(reports))
    return bar_plot(
        f"Ratio to {first}",
        [row.name for row in shown],
        bars,
        Axis(label="ratio"),
        note="Latencies: lower is better; tokens a second: higher is.",
    )


def distributions(phases: Mapping[str, Phase]) -> list[str | Table | Figure]:
    """What share of requests, or gaps, took at most so long."""
    plots: list[str | Table | Figure] = []
    for metric, words in METRICS.items():
        curves, rows = [], []
        for name, phase in phases.items():
            values = sorted(v for answer in phase.answers for v in answer.values(metric))
            # Tokens that came together have no time between them, and no logarithm.
            points = [(max(1000 * v, 0.01), (n + 1) / len(values)) for n, v in enumerate(values)]
            curves.append(Curve(name=name, points=points))
            figures = getattr(phase.summary, metric)
            rows.append([name, *(_ms(figures.get(each)) for each in STATISTICS)])
        if any(curve.points for curve in curves):
            table = Table(headings=["ms", *STATISTICS], rows=rows)
            axis = Axis(label=f"{words} (ms)", log=True)
            title = words.capitalize()
            plots.append(step_plot(title, curves, axis, _SHARE, table=table))
    return plots


def timeline(phases: Mapping[str, Phase]) -> list[str | Table | Figure]:
    """What happened when."""
    when = Axis(label="seconds since the phase began")
    first = [
        Curve(name=name, points=[(a.due, 1000 * t) for a in p.answers for t in a.values("ttft")])
        for name, p in phases.items()
    ]
    tokens = [Curve(name=name, points=_token_rate(p.answers)) for name, p in phases.items()]
    running = [Curve(name=name, points=_running(p.answers)) for name, p in phases.items()]
    return [
        scatter_plot(
            "Time to first token, by when requests were due", first, when, Axis(label="ms")
        ),
        line_plot("Output tokens a second", tokens, when, Axis(label="tokens a second", low=0)),
        step_plot(
            "Requests under way", running, when, Axis(label="requests due and not ended", low=0)
        ),
    ]


def _token_rate(answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Tokens a second, in parts of the time that are equally long."""
    times = []
    for answer in answers:
        if answer.first is not None:
            now = answer.first
            times.append(now)
            for gap in answer.gaps:
                now += gap / 1e6
                times.append(now)
    if not times:
        return []
    width = max(max(times) / _BINS, 1e-3)
    counts = [0] * (int(max(times) / width) + 1)
    for time in times:
        counts[int(time / width)] += 1
    return [((place + 0.5) * width, count / width) for place, count in enumerate(counts)]


def _running(answers: Sequence[Answer]) -> list[tuple[float, float]]:
    steps = sorted([(a.due, 1) for a in answers] + [(a.ended, -1) for a in answers])
    points, now = [], 0
    for when, step in steps:
        now += step
        points.append((when, float(now)))
    return points


def _sweep(reports: Mapping[str, Report]) -> list[str | Table | Figure]:
    """Throughput and latencies against the rate that was asked for."""
    x = Axis(label="requests a second, as they came", low=0)

    def curve(name: str, report: Report, value: Callable[[Phase], float | None]) -> Curve:
        points = [
            (phase.rate, found)
            for phase in report.phases
            if phase.rate is not None and (found := value(phase)) is not None
        ]
        return Curve(name=name, points=points)

    def named(name: str, word: str) -> str:
        return f"{name}, {word}" if name else word

    throughput, output, latencies = [], [], []
    lines: list[Line] = []
    for name, report in reports.items():
        answered = curve(named(name, "answered"), report, lambda p: p.summary.request_rate)
        throughput.append(answered)
        if report.settings.slos:
            kept = curve(named(name, "kept the SLOs"), report, lambda p: p.summary.goodput)
            throughput.append(kept)
        output.append(curve(name, report, lambda p: p.summary.output_rate))
        for which in ("p50", "p95", "p99"):
            latencies.append(curve(named(name, which), report, _in_ms("ttft", which)))
        if report.best_rate is not None:
            words = named(name, f"kept up to {report.best_rate:g}")
            lines.append(Line(name=words, at=report.best_rate, upright=True))
    promises = [
        Line(name=str(slo), at=1000 * slo.seconds)
        for slo in next(iter(reports.values())).settings.promises
        if slo.metric == "ttft"
    ]
    return [
        line_plot(
            "Requests a second", throughput, x, Axis(label="requests a second", low=0), lines=lines
        ),
        line_plot("Output tokens a second", output, x, Axis(label="tokens a second", low=0)),
        line_plot("Time to first token", latencies, x, Axis(label="ms", log=True), lines=promises),
    ]


def _in_ms(metric: str, which: str) -> Callable[[Phase], float | None]:
    """Finds a figure of a latency in milliseconds; `queue` is the server's."""

    def find(phase: Phase) -> float | None:
        figures = (phase.queue or {}) if metric == "queue" else getattr(phase.summary, metric)
        seconds = figures.get(which)
        return None if seconds is None else 1000 * seconds

    return find


def _figures(report: Report, phases: Mapping[str, Phase]) -> Table:
    rows: list[list[str]] = []

    def add(name: str, find: Callable[[Phase], float | None], share: bool = False) -> None:
        cells = [(_percent if share else _short)(find(phase)) for phase in phases.values()]
        if any(cells):
            rows.append([name, *cells])

    add("requests", lambda p: p.summary.requests)
    add("failed", lambda p: p.summary.failed)
    add("seconds", lambda p: p.summary.seconds)
    add("requests a second", lambda p: p.summary.request_rate)
    add("kept all SLOs, a second", lambda p: p.summary.goodput)
    add("output tokens a second", lambda p: p.summary.output_rate)
    add("all tokens a second", lambda p: p.summary.total_rate)
    add("prompt tokens from the cache", lambda p: p.summary.hit_rate, share=True)
    for metric, words in (METRICS | {"queue": "in the server's queue"}).items():
        for which in ("mean", "p50", "p95", "p99"):
            add(f"{words}, {which} (ms)", _in_ms(metric, which))
    add("energy (J)", lambda p: p.joules)
    add("price of a million output tokens", lambda p: (report.price(p) or (None,))[0])
    add("client's share of a processor", lambda p: p.client.share, share=True)
    return Table(headings=["", *phases], rows=rows)


def _failures(phases: Mapping[str, Phase]) -> Table | None:
    rows = [
        [name, kind, str(each.count), each.example]
        for name, phase in phases.items()
        for kind, each in phase.summary.errors.items()
    ]
    if not rows:
        return None
    headings = ["phase", "kind", "count", "what the first said"]
    return Table(headings=headings, rows=rows, words=True)


def setup_table(report: Report) -> Table:
    """What was measured, and how."""
    rows = [[name, value] for name, value in setup(report).items()]
    return Table(headings=["", "is"], rows=rows, words=True)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else short_number(1000 * seconds)


def _short(value: float | None) -> str:
    return "" if value is None else short_number(value)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
