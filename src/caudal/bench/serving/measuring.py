"""A whole measurement: phases one after another, or a sweep of rates."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random

from caudal import __version__
from caudal.bench.serving.answers import UNFINISHED
from caudal.bench.serving.arrivals import Arrivals
from caudal.bench.serving.conversation import Conversation
from caudal.bench.serving.energy import Energy
from caudal.bench.serving.http_client import StreamClient
from caudal.bench.serving.report import Client, ClientCost, Phase, Report, Summary
from caudal.bench.serving.runner import Load, Outcome, Progress, Sender
from caudal.bench.serving.server_metrics import queue_times
from caudal.bench.serving.settings import LoadSettings
from caudal.bench.serving.slo import held
from caudal.bench.serving.sweep import rates_to_measure
from caudal.bench.serving.target import Target, find_target, settle
from caudal.bench.serving.workloads import conversations
from caudal.machine import machine_facts

MEASURED = "measured"
"""The conversations that are measured, of all that a seed stands for; see `conversations`."""


async def measure(
    url: str,
    model: str | None,
    settings: LoadSettings,
    *,
    api_key: str | None = None,
    price_per_hour: float | None = None,
    command: list[str] | None = None,
    progress: Progress | None = None,
    found: Callable[[Target], None] = lambda _: None,
) -> Report:
    """Put load on a server and measure what comes of it.

    Where the task is cancelled once load is being sent, the report is of what came so far.

    Args:
        url: The server, without `/v1`.
        model: Its name for the model; None for its first.
        settings: The load.
        api_key: Sent as a bearer token.
        price_per_hour: What the server costs.
        command: Options, for the report.
        progress: Told what happens.
        found: Told who the server is, before any load.

    Raises:
        ParameterError: The address or a setting makes no sense.
        NobodyThereError: The server doesn't answer.
        OSError: It stopped answering before there was load.
    """
    settings.check()
    client = StreamClient(url, api_key, settings.timeout)
    try:
        target = await find_target(client, url, model)
        found(target)
        settled = await settle(client, target, settings)
        measurement = _Measurement(client, target, settled, progress or Progress())
        report = Report(
            created=_now(),
            complete=True,
            client=Client(
                version=__version__,
                python=platform.python_version(),
                machine=machine_facts(),
                command=command or [],
            ),
            target=target,
            settings=settled,
            phases=[],
            price_per_hour=price_per_hour,
            energy_missing=measurement.energy.missing,
        )
        if settled.sweep is None:
            await measurement.phases(report)
        else:
            await measurement.sweep(report)
        return report
    finally:
        client.close()


class _Measurement:
    def __init__(
        self, client: StreamClient, target: Target, settings: LoadSettings, progress: Progress
    ) -> None:
        self._client = client
        self._target = target
        self._settings = settings
        self._progress = progress
        self._sender = Sender(client, target.model, settings, progress)
        self.energy = Energy(target.url)

    async def phases(self, report: Report) -> None:
        """Fill a report with the phases that are wanted."""
        settings = self._settings
        if "cold" in settings.phases:
            first = next(conversations(settings, "cold")).turns[0]
            alone = Arrivals(concurrency=1)
            load = Load(iter([Conversation([first])]), alone, 1, None, Random(settings.seed))
            if not await self._measure(report, "cold", load):
                return
        if not await self._warm_up(report):
            return
        for name in ("warm", "warm-prefix"):
            if name in settings.phases:
                load = self._load(MEASURED, settings.arrivals(settings.rate))
                if not await self._measure(report, name, load):
                    return

    async def sweep(self, report: Report) -> None:
        """Fill a report with one phase for each rate."""
        settings = self._settings
        assert settings.sweep is not None
        if not await self._warm_up(report):
            return
        rates = rates_to_measure(settings.sweep, settings.rate, stops=bool(settings.slos))
        rate = next(rates, None)
        while rate is not None:
            # Other prompts for each rate, or the cache would answer those after the first.
            load = self._load(f"{MEASURED} at {rate:g}", settings.arrivals(rate))
            if not await self._measure(report, f"rate {rate:g}", load):
                break
            holds = report.phases[-1].slos_hold is not False
            if holds and settings.slos:
                report.best_rate = max(rate, report.best_rate or 0.0)
            try:
                rate = rates.send(holds)
            except StopIteration:
                rate = None
        report.phases.sort(key=lambda phase: phase.rate or 0.0)

    async def _warm_up(self, report: Report) -> bool:
        """Send what doesn't count; whether to go on."""
        count = self._settings.warmup
        if not count:
            return True
        arrivals = Arrivals(concurrency=min(count, self._settings.concurrency or 4))
        self._progress.begin("warm-up", None)
        outcome = await self._sender.send(self._load("warm-up", arrivals, requests=count))
        report.complete = not outcome.interrupted
        return report.complete

    def _load(self, stream: str, arrivals: Arrivals, requests: int | None = None) -> Load:
        settings = self._settings
        by_time = settings.duration is not None and requests is None
        return Load(
            conversations(settings, stream),
            arrivals,
            None if by_time else requests or settings.requests,
            settings.duration if by_time else None,
            Random(f"{settings.seed}/times of {stream}"),
        )

    async def _measure(self, report: Report, name: str, load: Load) -> bool:
        """Add a phase to a report; whether to go on."""
        self._progress.begin(name, load.duration)
        waited = await queue_times(self._client, self._target.names)
        joules, cpu = self.energy.read(), time.process_time()
        began, start = _now(), time.perf_counter()
        outcome = await self._sender.send(load)
        cost = _cost(time.process_time() - cpu, time.perf_counter() - start, outcome)
        spent = self.energy.joules_since(joules)
        report.complete = not outcome.interrupted
        if not outcome.answers:
            return report.complete
        slos = self._settings.promises
        later = None if waited is None else await queue_times(self._client, self._target.names)
        ended = [each for each in outcome.answers if each.error != UNFINISHED]
        figures = held(ended, slos)
        report.phases.append(
            Phase(
                name=name,
                began=began,
                rate=load.arrivals.rate,
                summary=Summary.of(outcome.answers, slos),
                slos={k: v if math.isfinite(v) else None for k, v in figures.items()},
                slos_hold=all(slo.holds(ended) for slo in slos) if slos else None,
                queue=None if waited is None or later is None else later.since(waited),
                joules=spent,
                client=cost,
                answers=outcome.answers,
            )
        )
        return report.complete


def _cost(cpu: float, seconds: float, outcome: Outcome) -> ClientCost:
    events = sum(len(each.gaps) + 1 for each in outcome.answers if each.first is not None)
    return ClientCost(
        cpu_seconds=round(cpu, 4),
        share=round(cpu / seconds, 4) if seconds else 0.0,
        microseconds_per_event=round(1e6 * cpu / events, 2) if events else 0.0,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
