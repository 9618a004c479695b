"""Reports side by side: what changed, by how much, and whether chance explains it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from caudal.bench.serving.answers import Answer
from caudal.bench.serving.report import Phase, Report
from caudal.bench.serving.slo import METRICS

_DRAWS = 1000
"""Samples of the bootstrap."""

_WORK = 20_000_000
"""Values that all samples of a figure have together at most: fewer are drawn of large reports."""

_FEWEST_DRAWS = 200

_STATISTICS = ("mean", "p50", "p95", "p99")

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one report.

    Attributes:
        value: It.
        low: What it may as well have been with other requests of the same kind, at least.
        high: And at most: 95 % of the bootstrap's samples are between.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of a report over that of the first one.

    Attributes:
        value: The ratio.
        low: By chance it may be this, at least.
        high: And this at most.
        better: Whether a greater ratio is better.
        enough: Whether there were enough values for the interval to mean anything.
    """

    value: float
    low: float
    high: float
    better: bool
    enough: bool

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `same` where chance explains it, or `too few` to say."""
        if not self.enough:
            return "too few"
        if self.low <= 1 <= self.high:
            return "same"
        return "better" if (self.value > 1) == self.better else "worse"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of all reports.

    Attributes:
        name: What it is, e.g. `ttft p50`.
        unit: `ms`, or `/s`.
        figures: One for each report; None where it has none.
        ratios: One for each report but the first; None where either has none.
    """

    name: str
    unit: str
    figures: Sequence[Figure | None]
    ratios: Sequence[Ratio | None]


def compare(phases: Sequence[Phase]) -> list[Row]:
    """Figures of phases, with ratios to those of the first.

    Intervals are of a bootstrap (Efron, 1979): of latencies each sample has as many requests as
    there were, drawn with replacement; of rates as many parts of the time (blocks, as in Künsch,
    1989). What all of a run had in common, such as a machine that was busy, isn't in it: only
    running again shows that.
    """
    rows = []
    for metric in METRICS:
        samples = [
            _latency_samples(phase.answers, metric, place) for place, phase in enumerate(phases)
        ]
        for place, which in enumerate(_STATISTICS):
            drawn = [None if each is None else each[:, place] for each in samples]
            enough = all(_are_enough(phase.answers, metric, which) for phase in phases)
            name = f"{metric} {which}"
            rows.append(_row(name, "ms", drawn, better=False, factor=1000, enough=enough))
    for name, events in _RATES.items():
        drawn = [_rate_samples(phase, name, events, place) for place, phase in enumerate(phases)]
        rows.append(_row(name, "/s", drawn, better=True, factor=1, enough=True))
    return [row for row in rows if any(figure is not None for figure in row.figures)]


def _row(
    name: str,
    unit: str,
    drawn: Sequence[_Floats | None],
    *,
    better: bool,
    factor: float,
    enough: bool,
) -> Row:
    """A figure: of each report the value itself, and then those of its samples."""
    first = drawn[0]
    figures = [None if each is None else _figure(factor * each) for each in drawn]
    ratios: list[Ratio | None] = []
    for each in drawn[1:]:
        if first is None or each is None or first[0] <= 0:
            ratios.append(None)
            continue
        count = min(len(first), len(each))
        positive = first[1:count] > 0
        quotients = each[1:count][positive] / first[1:count][positive]
        low, high = np.quantile(quotients, (0.025, 0.975)) if len(quotients) else (0.0, np.inf)
        ratios.append(Ratio(float(each[0] / first[0]), float(low), float(high), better, enough))
    return Row(name, unit, figures, ratios)


def _figure(values: _Floats) -> Figure:
    low, high = np.quantile(values[1:], (0.025, 0.975))
    return Figure(float(values[0]), float(low), float(high))


_FEWEST_BEYOND = 5
"""Requests that must lie beyond a percentile: drawing anew knows nothing of what it never saw."""


def _are_enough(answers: Sequence[Answer], metric: str, which: str) -> bool:
    counts = [len(answer.values(metric)) for answer in answers if answer.values(metric)]
    share = 0.5 if which == "mean" else 1 - float(which.removeprefix("p")) / 100
    beyond = share * sum(counts)
    return len(counts) >= 2 * _FEWEST_BEYOND and round(beyond, 9) >= _FEWEST_BEYOND


def _latency_samples(answers: Sequence[Answer], metric: str, place: int) -> _Floats | None:
    """(1 + samples, statistics) of a latency: first of what was measured, then of each sample."""
    groups = [values for answer in answers if (values := answer.values(metric))]
    if not groups:
        return None
    flat = np.array([value for values in groups for value in values])
    lengths = np.array([len(values) for values in groups])
    starts = np.cumsum(lengths) - lengths
    random = np.random.default_rng(_seed(metric, place))
    rows = [_statistics(flat)]
    for _ in range(_draws(len(flat))):
        chosen = random.integers(0, len(groups), len(groups))
        rows.append(_statistics(flat[_members(starts[chosen], lengths[chosen])]))
    return np.array(rows)


def _members(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The places of the values of groups that begin at `starts`."""
    ends = np.cumsum(lengths)
    offsets = np.repeat(starts - (ends - lengths), lengths)
    return np.asarray(np.arange(int(ends[-1])) + offsets, np.intp)


def _statistics(values: _Floats) -> list[float]:
    ordered = np.sort(values)
    ranks = (math.ceil(round(share * len(ordered), 9)) for share in (0.5, 0.95, 0.99))
    return [float(values.mean()), *(float(ordered[rank - 1]) for rank in ranks)]


def _rate_samples(
    phase: Phase, name: str, events: Callable[[Answer], _Events], place: int
) -> _Floats | None:
    """The rate that was measured, and then samples."""
    seen = [event for answer in phase.answers if answer.error is None for event in events(answer)]
    if not seen:
        return None
    begin = min(answer.due for answer in phase.answers)
    times, counts = (np.array(each) for each in zip(*seen, strict=True))
    whole = (begin, begin + phase.summary.seconds)
    blocks, _ = np.histogram(times, _BLOCKS, range=whole, weights=counts)
    random = np.random.default_rng(_seed(name, place))
    samples = blocks[random.integers(0, _BLOCKS, (_DRAWS, _BLOCKS))].sum(axis=1)
    return np.array([counts.sum(), *samples]) / phase.summary.seconds


_Events = Sequence[tuple[float, float]]
"""When something came, and how much of it."""


def _ends(answer: Answer) -> _Events:
    return [(answer.ended, 1.0)]


def _output(answer: Answer) -> _Events:
    if answer.first is None:
        return [(answer.ended, answer.output_tokens)]
    each = answer.output_tokens / (len(answer.gaps) + 1)
    times = answer.first + np.cumsum([0, *answer.gaps]) / 1e6
    return [(float(time), each) for time in times]


def _all(answer: Answer) -> _Events:
    first = answer.ended if answer.first is None else answer.first
    return [(first, answer.prompt_tokens), *_output(answer)]


_RATES: Mapping[str, Callable[[Answer], _Events]] = {
    "requests": _ends,
    "output tokens": _output,
    "all tokens": _all,
}

_BLOCKS = 20
"""Parts of the time of which rates are drawn: long enough to have little to do with each other."""


def _draws(values: int) -> int:
    return max(_FEWEST_DRAWS, min(_DRAWS, _WORK // max(1, values)))


def _seed(name: str, place: int) -> int:
    """The same reports give the same intervals, and each of them is drawn by itself."""
    return int.from_bytes(hashlib.sha256(f"{name} {place}".encode()).digest()[:8], "little")


_SAME_HITS = 0.02
"""By how much shares of prompts that came from the cache may differ without its being said."""

_BYSIDE = ("created", "command", "status", "internal_states", "load_average")
"""What differs from run to run and explains nothing."""


def setup(report: Report) -> dict[str, str]:
    """All that decides what a report says, by dotted names."""
    whole = {
        "load": msgspec.to_builtins(report.settings),
        "server": msgspec.to_builtins(report.target),
        "client": msgspec.to_builtins(report.client),
        "energy": report.energy_missing or "measured",
    }
    return dict(_flat("", whole))


def differences(reports: Sequence[Report]) -> dict[str, list[str]]:
    """What isn't the same in all of them."""
    setups = [setup(report) for report in reports]
    names = dict.fromkeys(name for each in setups for name in each)
    found = {name: [each.get(name, "") for each in setups] for name in names}
    hits = [report.main_phase().summary.hit_rate for report in reports]
    if max(known := [each or 0.0 for each in hits]) - min(known) > _SAME_HITS:
        # The same prompts again are known to a server that has run on.
        found["prefix hits"] = ["unknown" if each is None else f"{each:.0%}" for each in hits]
    return {
        name: values
        for name, values in found.items()
        if len(set(values)) > 1 and not set(name.split(".")) & set(_BYSIDE)
    }


def _flat(name: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        return [
            pair
            for key, each in value.items()
            for pair in _flat(f"{name}.{key}" if name else str(key), each)
        ]
    if isinstance(value, str):
        return [(name, value)]
    return [(name, "" if value is None else json.dumps(value))]
