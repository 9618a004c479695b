"""`GET /metrics`: what Prometheus scrapes. All names begin with `caudal_`."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from caudal.engine.request import SequenceUpdate
from caudal.engine.stats import EngineStats
from caudal.loading.packaged import OWN_ADAPTER
from caudal.service.context import RequestContext
from caudal.service.generation import Generation
from caudal.service.words import shortened

logger = logging.getLogger("caudal.server")

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
MAX_USER = 128
"""Most characters of a user's name that the log has."""

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)


def logged_context(context: RequestContext) -> str:
    """How a log line ends that tells of a request."""
    adapter, user = context.adapter, context.user
    said = "" if adapter is None else f", adapter {shortened(adapter, MAX_USER)!r}"
    return said if user is None else f"{said}, user {shortened(user, MAX_USER)!r}"


class ServiceMetrics:
    """What Prometheus sees: times and ends of requests, and the engine's counts as they stand.

    Args:
        stats: Takes a snapshot of the engine; called once per scrape.
    """

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(stats))
        self._requests = Counter(
            "caudal_requests_finished",
            "Requests that ended, by reason.",
            ["reason"],
            registry=self._registry,
        )
        for reason in ("stop", "length", "cancelled", "timeout", "failed"):
            self._requests.labels(reason)  # a series that exists from the start can be alerted on
        self.queue_time = self._histogram(
            "caudal_request_queue_time_seconds", "Arrival to first computation.", _SECONDS
        )
        self.first_token = self._histogram(
            "caudal_time_to_first_token_seconds", "Arrival to first token.", _SECONDS
        )
        self.inter_token = _FastHistogram(
            "caudal_inter_token_latency_seconds",
            "Between two tokens of a sequence.",
            _TOKEN_SECONDS,
        )
        self._registry.register(self.inter_token)
        self._end_to_end = self._histogram(
            "caudal_e2e_request_latency_seconds", "Arrival to end.", _SECONDS
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self._registry)

    def observer(self, context: RequestContext) -> RequestObserver:
        """A clock for one request that has arrived."""
        return RequestObserver(self, context)

    def observe_queue_time(self, update: SequenceUpdate) -> None:
        """Add the time that a request waited, once it has run."""
        if update.first_scheduled is not None:
            self.queue_time.observe(update.first_scheduled - update.submitted)

    def count(self, outcome: str | None, seconds: float) -> None:
        """Add an ended request."""
        self._requests.labels(outcome).inc()
        self._end_to_end.observe(seconds)

    def count_unprepared(self, context: RequestContext) -> None:
        """Add a request that ran out of time before it could be submitted, and log it."""
        seconds = context.seconds_since_arrival()
        self.count("timeout", seconds)
        logger.info("timeout: still being prepared, %.2f s%s", seconds, logged_context(context))

    def render(self) -> bytes:
        """The text that Prometheus expects."""
        return generate_latest(self._registry)


class _FastHistogram(Collector):
    """A histogram for what happens with every token. Used by one thread, so it needs no locks."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """The counts so far."""
        names = map(floatToGoString, (*self._bounds, float("inf")))
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class _EngineCollector(Collector):
    """Reads the engine at scrape time: nothing is counted twice, and nothing per token."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering the collector must not take a snapshot."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One snapshot as metrics."""
        stats = self._stats()
        gauges = {
            "requests_waiting": ("Sequences in the queue.", stats.waiting),
            "requests_running": ("Sequences that have a place.", stats.running),
            "batch_sequences": ("Sequences of the latest batch.", stats.last_batch_sequences),
            "batch_tokens": ("Tokens of the latest batch.", stats.last_batch_tokens),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"caudal_{name}", text, value)
        blocks = GaugeMetricFamily(
            "caudal_kv_blocks",
            "KV blocks by state: used by running sequences, cached, or free.",
            labels=["state"],
        )
        blocks.add_metric(["used"], stats.blocks_used)
        blocks.add_metric(["cached"], stats.blocks_cached)
        blocks.add_metric(["free"], stats.blocks_free)
        yield blocks
        if stats.windows:
            windows = GaugeMetricFamily(
                "caudal_window_blocks",
                "Blocks of the pools for layers with windows, by window and by state.",
                labels=["window", "state"],
            )
            for window, use in stats.windows.items():
                for state in ("used", "cached", "free"):
                    windows.add_metric([str(window), state], getattr(use, state))
            yield windows
        if stats.slots is not None:
            slots = GaugeMetricFamily(
                "caudal_state_slots",
                "Slots for recurrent states by state: of running sequences, snapshots, or free.",
                labels=["state"],
            )
            for state in ("used", "cached", "free"):
                slots.add_metric([state], getattr(stats.slots, state))
            yield slots
        named = {name: count for name, count in stats.adapters.items() if name != OWN_ADAPTER}
        if named:
            adapters = GaugeMetricFamily(
                "caudal_adapter_requests",
                "Requests that wait or run, by the adapter that they use.",
                labels=["adapter"],
            )
            for adapter, requests in named.items():
                adapters.add_metric([adapter], requests)
            yield adapters
        counters = {
            "prompt_tokens": ("Prompt tokens of started requests.", stats.prompt_tokens),
            "cache_hit_tokens": (
                "Prompt tokens that came from the prefix cache.",
                stats.cache_hit_tokens,
            ),
            "generation_tokens": ("Tokens generated.", stats.generated_tokens),
            "preemptions": ("Sequences that lost their place.", stats.preemptions),
            "iterations": ("Batches executed.", stats.iterations),
            "batched_tokens": ("Tokens computed.", stats.batched_tokens),
            "executor_failures": ("Batches that failed.", stats.executor_failures),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"caudal_{name}", text, value)


class RequestObserver:
    """Times one request by the engine's clock, and logs a line when it has ended."""

    def __init__(self, metrics: ServiceMetrics, context: RequestContext) -> None:
        self._metrics = metrics
        self._context = context
        self._last_token: dict[int, float] = {}

    def on_update(self, update: SequenceUpdate) -> None:
        """Take the time of a sequence's new tokens."""
        if not update.tokens:
            return
        if not self._last_token:
            self._metrics.observe_queue_time(update)
            self._metrics.first_token.observe(update.time - update.submitted)
        last = self._last_token.get(update.index)
        if last is not None:
            self._metrics.inter_token.observe((update.time - last) / len(update.tokens))
        self._last_token[update.index] = update.time

    def on_end(self, generation: Generation) -> None:
        """Count the request and its tokens."""
        seconds = self._context.seconds_since_arrival()
        self._metrics.count(generation.outcome, seconds)
        logger.info(
            "%s: prompt %d tokens (%d cached), answer %d tokens, %.2f s%s",
            generation.outcome,
            len(generation.request.prompt),
            generation.num_cached_tokens,
            generation.num_output_tokens,
            seconds,
            logged_context(self._context),
        )
