"""What users are promised: bounds on percentiles of latencies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from caudal.bench.serving.answers import Answer
from caudal.bench.serving.statistics import statistic
from caudal.errors import ParameterError

METRICS = ("ttft", "itl", "tpot", "e2e")

_FORM = re.compile(rf"({'|'.join(METRICS)}):(mean|max|p\d{{1,2}}(?:\.\d+)?):([\d.]+)(us|ms|s)")

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class Slo(msgspec.Struct, frozen=True):
    """One promise.

    Attributes:
        metric: `ttft`, `itl`, `tpot` or `e2e`.
        statistic: `mean`, `max`, or a percentile such as `p95`.
        seconds: What it may be at most.
    """

    metric: str
    statistic: str
    seconds: float

    @classmethod
    def parse(cls, written: str) -> Slo:
        """Read e.g. `ttft:p95:500ms`.

        Raises:
            ParameterError: It is none.
        """
        match = _FORM.fullmatch(written)
        if match is None:
            raise ParameterError(
                "slo",
                "slo must be METRIC:STATISTIC:TIME, e.g. ttft:p95:500ms, where METRIC is one of "
                f"{', '.join(METRICS)} and STATISTIC mean, max or a percentile; is {written!r}.",
            )
        metric, which, number, unit = match.groups()
        try:
            seconds = float(number) * _UNITS[unit]
        except ValueError as error:
            raise ParameterError("slo", f"slo: {number!r} is not a number.") from error
        return cls(metric, which, seconds)

    def __str__(self) -> str:
        return f"{self.metric} {self.statistic} ≤ {1000 * self.seconds:g} ms"

    def value(self, answers: Sequence[Answer]) -> float:
        """What it is; requests that failed never had their tokens, and count as infinite."""
        values = [value for answer in answers for value in answer.values(self.metric)]
        failed = [math.inf for answer in answers if answer.error is not None]
        return statistic(self.statistic, values + failed)

    def holds(self, answers: Sequence[Answer]) -> bool:
        """Whether it is kept."""
        return self.value(answers) <= self.seconds

    def kept_by(self, answer: Answer) -> bool:
        """Whether one request had what is promised; of its gaps between tokens the mean counts."""
        if answer.error is not None:
            return False
        metric = "tpot" if self.metric == "itl" else self.metric
        return all(value <= self.seconds for value in answer.values(metric))


def good(answers: Sequence[Answer], slos: Sequence[Slo]) -> int:
    """How many requests had all that is promised."""
    return sum(all(slo.kept_by(answer) for slo in slos) for answer in answers)


def held(answers: Sequence[Answer], slos: Sequence[Slo]) -> Mapping[str, float]:
    """What each promised figure is."""
    return {str(slo): slo.value(answers) for slo in slos}
