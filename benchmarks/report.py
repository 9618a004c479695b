"""Medians, ratios and shares of limits, as Markdown and as JSON: one report a number of threads."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cases import GuessCase, Metric
from benchmarks.guess_report import GuessRow, guess_table
from benchmarks.limits import INSTRUCTIONS, Limits
from benchmarks.measure import CaseResults, Result
from benchmarks.peers.caudal import CAUDAL
from benchmarks.tables import markdown_table

_PHASES: Mapping[Metric, str] = {"all": "", "prompt": ": prompt", "output": ": output"}


@dataclass(frozen=True, slots=True)
class Row:
    """One rate of one case on one file.

    Attributes:
        results: All peers' results, by name.
        metric: Which rate.
        title: The case's title, and which phase where it has several.
        limit_seconds: The least time that the machine's limits allow, or None where unknown.
        limit: The limit that accounts for most of it.
        tokens: Tokens that the rate counts.
        read: Bytes a second at which memory was read around the case, or None where unknown.
    """

    results: CaseResults
    metric: Metric
    title: str
    limit_seconds: float | None
    limit: str | None
    tokens: int
    read: float | None

    def median(self, peer: str) -> float | None:
        """Tokens per second; None where it has none, or wasn't asked."""
        result = self.results.peers.get(peer)
        rates = result.rates.get(self.metric) if result is not None else None
        return statistics.median(rates) if rates else None

    def ratio(self, peer: str) -> float | None:
        """Caudal's median over the peer's."""
        mine, theirs = self.median(CAUDAL), self.median(peer)
        return mine / theirs if mine and theirs else None

    @property
    def ratio_to_best(self) -> float | None:
        """Caudal's median over the best peer's."""
        ratios = [self.ratio(peer) for peer in self.results.peers if peer != CAUDAL]
        known = [ratio for ratio in ratios if ratio is not None]
        return min(known) if known else None

    @property
    def share(self) -> float | None:
        """Caudal's median over the rate that the machine's limits allow."""
        mine = self.median(CAUDAL)
        if mine is None or self.limit_seconds is None:
            return None
        return mine * self.limit_seconds / self.tokens


def rows_of(results: CaseResults, limits: Limits | None) -> list[Row]:
    """A case's rows, one for each metric; those of guesses are in `guess_report.py`."""
    case = results.case
    rows: list[Row] = []
    if isinstance(case, GuessCase):
        return rows
    for metric in case.metrics:
        ideal = results.model.costs.ideal(case, metric, limits) if limits else None
        rows.append(
            Row(
                results=results,
                metric=metric,
                title=case.title + _PHASES[metric],
                limit_seconds=ideal.seconds if ideal else None,
                limit=ideal.limit if ideal else None,
                tokens=case.tokens(metric),
                read=limits.read if limits else None,
            )
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a run of the benchmark found.

    Attributes:
        settings: How it was measured.
        machine: Facts about the machine.
        limits: The machine's limits, or None.
        no_limits: Why there are none, or None.
        titles: Peers' titles by name, Caudal first.
        versions: What was measured, by the peer's name.
        rows: In the order measured.
        guesses: Likewise.
    """

    settings: Mapping[str, str]
    machine: Mapping[str, str]
    limits: Limits | None
    no_limits: str | None
    titles: Mapping[str, str]
    versions: Mapping[str, str]
    rows: Sequence[Row]
    guesses: Sequence[GuessRow] = ()

    def markdown(self) -> str:
        """The report for people."""
        parts = ["# Caudal beside its peers", self._facts(), self._limits()]
        if self.rows:
            parts += ["## Rates", self._table()]
        if self.guesses:
            parts += ["## Guesses", guess_table(self.guesses, self.titles)]
        parts += self._notes()
        for family, rows in _grouped([(row.results.model.family, row) for row in self.rows]):
            best = best_files(rows, self.titles)
            if best:
                parts += [f"## {family}: each on its best 4-bit file", best]
        return "\n\n".join(parts) + "\n"

    def to_json(self) -> str:
        """The report for programs, with every run's figures."""
        return json.dumps(
            {
                "settings": self.settings,
                "machine": self.machine,
                "limits": self.limits.rates if self.limits else None,
                "versions": self.versions,
                "rows": [_row_json(row) for row in self.rows],
                "guesses": [row.json() for row in self.guesses],
            },
            indent=2,
        )

    def _facts(self) -> str:
        lines = [f"- {name}: {value}" for name, value in self.settings.items()]
        lines += [f"- {name}: {value}" for name, value in self.machine.items()]
        lines += [f"- {self.titles[name]}: {version}" for name, version in self.versions.items()]
        return "\n".join(lines)

    def _limits(self) -> str:
        if self.limits is None:
            return f"The machine's limits were not measured: {self.no_limits}"
        limits = self.limits
        used = {"read", limits.fastest("fp32"), limits.fastest("int8")}
        table = [["limit", "measured", "shares refer to it"]]
        for name, rate in limits.rates.items():
            unit = "GB/s" if name == "read" else "GOP/s"
            mark = "yes" if name in used else ""
            table.append([INSTRUCTIONS.get(name, name), f"{rate / 1e9:.1f} {unit}", mark])
        return markdown_table(table, align="lrl")

    def _table(self) -> str:
        """All rows, of peers that were asked; beside each peer's rate is Caudal's over it."""
        asked = {name for row in self.rows for name in row.results.peers}
        peers = [name for name in self.titles if name != CAUDAL and name in asked]
        titles = [self.titles[name] for name in peers]
        head = ["tok/s, median", "", "Caudal", "of the limit", "memory read", *titles]
        table = [[*head, "to the best"]]
        last = None
        for row in self.rows:
            model = row.results.model.title
            share = "-" if row.share is None else f"{row.share:.0%} ({row.limit})"
            read = "-" if row.read is None else f"{row.read / 1e9:.1f} GB/s"
            line = ["" if model == last else model, row.title, _rate(row, CAUDAL), share, read]
            last = model
            for peer in peers:
                ratio = row.ratio(peer)
                times = "" if ratio is None else f" ({_times(ratio)})"
                line.append(_rate(row, peer) + times)
            table.append([*line, _times(row.ratio_to_best)])
        return markdown_table(table, align="ll" + "r" * (len(head) - 1))

    def _notes(self) -> list[str]:
        """Why figures are missing, which requests failed, and how peers run a file; each once."""
        notes: dict[str, dict[str, None]] = {}
        cases = [row.results for row in self.rows] + [row.results for row in self.guesses]
        for results in cases:
            for peer, result in results.peers.items():
                for note in _result_notes(result):
                    notes.setdefault(f"{self.titles[peer]}: {note}", {})[_place(results)] = None
        everywhere = {_place(results) for results in cases}
        lines = [
            f"- {note}" + ("" if places.keys() == everywhere else f" [{'; '.join(places)}]")
            for note, places in notes.items()
        ]
        lines = self._file_facts(cases) + lines
        return ["\n".join(lines)] if lines else []

    def _file_facts(self, cases: Sequence[CaseResults]) -> list[str]:
        """What peers say about how they run a file."""
        facts: dict[str, dict[str, None]] = {}
        for results in cases:
            for peer, result in results.peers.items():
                if result.facts:
                    told = ", ".join(f"{name} {value}" for name, value in result.facts.items())
                    line = f"- {self.titles[peer]}: {told}"
                    facts.setdefault(line, {})[results.model.name] = None
        return [f"{line} [{', '.join(models)}]" for line, models in facts.items()]


def _place(results: CaseResults) -> str:
    return f"{results.model.name}: {results.case.title}"


def best_files(rows: Sequence[Row], titles: Mapping[str, str]) -> str | None:
    """A table of each peer's best rate over a family's 4-bit files; None for a single file."""
    rows = [row for row in rows if row.results.model.four_bit]
    if len({row.results.model.name for row in rows}) < 2:
        return None
    table = [["tok/s, median", *titles.values(), "to the best"]]
    for title, same in _grouped([(row.title, row) for row in rows]):
        line, rates = [title], {}
        for peer in titles:
            known = [(rate, row) for row in same if (rate := row.median(peer)) is not None]
            if known:
                rates[peer], row = max(known, key=lambda pair: pair[0])
                line.append(f"{rates[peer]:.0f} ({row.results.model.name})")
            else:
                line.append("-")
        others = [rate for peer, rate in rates.items() if peer != CAUDAL]
        ratio = rates[CAUDAL] / max(others) if others and CAUDAL in rates else None
        table.append([*line, _times(ratio)])
    return markdown_table(table, align="l" + "r" * (len(titles) + 1))


def _grouped(pairs: Sequence[tuple[str, Row]]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for key, row in pairs:
        groups.setdefault(key, []).append(row)
    return list(groups.items())


def _rate(row: Row, peer: str) -> str:
    rate = row.median(peer)
    result = row.results.peers.get(peer)
    failed = sum(result.failures.values()) if result is not None else 0
    return "-" if rate is None else f"{rate:.0f}" + (f" ({failed} failed)" if failed else "")


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} x"


def _result_notes(result: Result) -> list[str]:
    notes = [result.missing] if result.missing is not None else []
    return notes + [
        f"{count} of {result.requests} requests failed: {error}"
        for error, count in result.failures.items()
    ]


def _row_json(row: Row) -> dict[str, object]:
    return {
        "model": row.results.model.name,
        "case": row.results.case.name,
        "metric": row.metric,
        "share": row.share,
        "limit": row.limit,
        "read": row.read,
        "ratio_to_best": row.ratio_to_best,
        "peers": {
            peer: {
                "median": row.median(peer),
                "ratio": row.ratio(peer),
                "rates": result.rates.get(row.metric, []),
                "requests": result.requests,
                "failures": dict(result.failures),
                "missing": result.missing,
                "facts": dict(result.facts),
            }
            for peer, result in row.results.peers.items()
        },
    }
