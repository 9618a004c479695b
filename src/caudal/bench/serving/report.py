"""What was measured, and of what: one JSON document from which all figures can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from caudal.bench.serving.answers import UNFINISHED, Answer
from caudal.bench.serving.settings import LoadSettings
from caudal.bench.serving.slo import Slo, good
from caudal.bench.serving.statistics import distribution
from caudal.bench.serving.target import Target
from caudal.errors import CaudalError

SCHEMA = "caudal-bench-serve/1"
"""The number changes with what fields mean, not when some are added."""


class ReportError(CaudalError):
    """A file is no report."""


class Failures(msgspec.Struct):
    """Requests that failed in one way.

    Attributes:
        count: How many.
        example: What the first of them said.
    """

    count: int
    example: str


class Summary(msgspec.Struct, kw_only=True):
    """Figures of a phase. Rates and latencies are of the requests that succeeded.

    Attributes:
        requests: Requests that ended.
        failed: How many of them failed.
        unfinished: Requests that were given up when the load was broken off.
        errors: Those that failed, by kind.
        seconds: From the first arrival to the end of the last answer.
        request_rate: Requests per second.
        total_rate: Prompt and output tokens per second, cached or not.
        output_rate: Output tokens per second.
        prompt_tokens: All that were sent.
        output_tokens: All that came.
        hit_rate: Share of prompt tokens that the server had already; None if it doesn't say.
        events_per_token: Below 1, tokens came in groups: gaps are those between groups.
        ttft: Seconds to the first token.
        itl: Seconds between tokens, of all gaps of all requests.
        tpot: Seconds per token behind the first, the mean of each request.
        e2e: Seconds to the end.
        late: Seconds for which requests waited at the client beyond when they were due.
        good: Requests that had all that the SLOs promise; None without SLOs.
        goodput: These per second.
    """

    requests: int
    failed: int
    unfinished: int
    errors: dict[str, Failures]
    seconds: float
    request_rate: float
    total_rate: float
    output_rate: float
    prompt_tokens: int
    output_tokens: int
    hit_rate: float | None
    events_per_token: float
    ttft: dict[str, float]
    itl: dict[str, float]
    tpot: dict[str, float]
    e2e: dict[str, float]
    late: dict[str, float]
    good: int | None = None
    goodput: float | None = None

    @classmethod
    def of(cls, answers: Sequence[Answer], slos: Sequence[Slo] = ()) -> Summary:
        """Sum answers up."""
        ended = [answer for answer in answers if answer.error != UNFINISHED]
        fine = [answer for answer in ended if answer.error is None]
        begin = min((answer.due for answer in ended), default=0.0)
        seconds = max((answer.ended for answer in ended), default=0.0) - begin or 1e-9
        prompt = sum(answer.prompt_tokens for answer in fine)
        output = sum(answer.output_tokens for answer in fine)
        events = sum(len(answer.gaps) + 1 for answer in fine if answer.first is not None)
        kept = good(ended, slos) if slos else None

        def latencies(metric: str) -> dict[str, float]:
            return distribution([v for answer in fine for v in answer.values(metric)])

        return cls(
            requests=len(ended),
            failed=len(ended) - len(fine),
            unfinished=len(answers) - len(ended),
            errors=_failures(ended),
            seconds=seconds,
            request_rate=len(fine) / seconds,
            total_rate=(prompt + output) / seconds,
            output_rate=output / seconds,
            prompt_tokens=prompt,
            output_tokens=output,
            hit_rate=_hit_rate(fine),
            events_per_token=events / output if output else 0.0,
            ttft=latencies("ttft"),
            itl=latencies("itl"),
            tpot=latencies("tpot"),
            e2e=latencies("e2e"),
            late=distribution([answer.sent - answer.due for answer in ended]),
            good=kept,
            goodput=None if kept is None else kept / seconds,
        )


class ClientCost(msgspec.Struct, kw_only=True):
    """What the client took, so that it can be seen whether it held the server up.

    Attributes:
        cpu_seconds: Processor time.
        share: Of one processor, all the time that the phase took.
        microseconds_per_event: For each event with tokens that came, all in all.
    """

    cpu_seconds: float
    share: float
    microseconds_per_event: float


class Phase(msgspec.Struct, kw_only=True):
    """One part of a measurement.

    Attributes:
        name: `cold`, `warm`, `warm-prefix`, or a sweep's `rate N`.
        began: When, in ISO 8601.
        rate: Arrivals a second; None for a closed loop.
        summary: Its figures.
        slos: What each promised figure was in seconds; None is infinite: too many failed.
        slos_hold: Whether all of them were kept; None without SLOs.
        queue: Seconds in the server's queue, from its metrics; None where it has none.
        joules: Energy of the processors; None where the machine doesn't say.
        client: What the client took.
        answers: Every request.
    """

    name: str
    began: str
    rate: float | None
    summary: Summary
    slos: dict[str, float | None] = {}
    slos_hold: bool | None = None
    queue: dict[str, float] | None = None
    joules: float | None = None
    client: ClientCost
    answers: list[Answer]


class Client(msgspec.Struct, kw_only=True):
    """Who measured.

    Attributes:
        version: Caudal's.
        python: Python's.
        machine: The machine: processor, processors, memory, system.
        command: The options that were given, without keys.
    """

    version: str
    python: str
    machine: dict[str, str]
    command: list[str] = []


class Report(msgspec.Struct, kw_only=True):
    """A measurement.

    Attributes:
        schema: `SCHEMA`.
        created: When it began, in ISO 8601.
        complete: Whether nothing was broken off.
        client: Who measured.
        target: Who was measured.
        settings: The load.
        phases: What came of it; of a sweep, in the order of its rates.
        best_rate: The greatest rate of a sweep that kept the SLOs; None if none did.
        energy_missing: Why no energy is known; None if it is.
        price_per_hour: What the server costs; None if nobody said.
    """

    schema: str = SCHEMA
    created: str
    complete: bool
    client: Client
    target: Target
    settings: LoadSettings
    phases: list[Phase]
    best_rate: float | None = None
    energy_missing: str | None = None
    price_per_hour: float | None = None

    @property
    def failed(self) -> int:
        """Requests that failed, in all phases."""
        return sum(phase.summary.failed for phase in self.phases)

    def main_phase(self) -> Phase:
        """The one to compare: the warm one; of a sweep, the best that kept the SLOs, or the last.

        Raises:
            ReportError: It has none, as it was broken off before.
        """
        if not self.phases:
            raise ReportError("the report has no phase: its load was broken off before one ended.")
        best = [each for each in self.phases if each.rate == self.best_rate is not None]
        warm = [each for each in self.phases if each.name == "warm"]
        return (best or warm or self.phases)[-1]

    def price(self, phase: Phase) -> tuple[float, float] | None:
        """What a million output tokens costs, and a million of all tokens; None if unknown."""
        rates = (phase.summary.output_rate, phase.summary.total_rate)
        if self.price_per_hour is None or not all(rates):
            return None
        output, total = (1e6 * self.price_per_hour / (3600 * rate) for rate in rates)
        return output, total

    def to_json(self) -> bytes:
        """All of it."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read what `to_json` wrote.

        Raises:
            ReportError: It isn't there, or no report of a version that is known.
        """
        try:
            written = path.read_bytes()
        except OSError as error:
            raise ReportError(f"{path}: {error.strerror or error}.") from error
        try:
            schema = msgspec.json.decode(written, type=_Schema).schema
            if schema == SCHEMA:
                return msgspec.json.decode(written, type=cls)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ReportError(f"{path} is no report: {error}.") from error
        raise ReportError(f"{path} is a report of form {schema!r}; this version reads {SCHEMA!r}.")


class _Schema(msgspec.Struct):
    schema: str


def _failures(answers: Sequence[Answer]) -> dict[str, Failures]:
    found: dict[str, Failures] = {}
    for answer in answers:
        if answer.error is not None:
            kind = found.setdefault(answer.error, Failures(0, answer.message or ""))
            kind.count += 1
    return found


def _hit_rate(answers: Sequence[Answer]) -> float | None:
    known = [answer for answer in answers if answer.cached_tokens is not None]
    prompt = sum(answer.prompt_tokens for answer in known)
    return sum(answer.cached_tokens or 0 for answer in known) / prompt if prompt else None
