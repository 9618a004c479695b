"""What an engine has done and holds, as Prometheus' client takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from caudal.engine.async_engine import AsyncEngine
from caudal.engine.drafting.counts import DraftCounts
from caudal.engine.histogram import Histogram as Histogram  # for who counts elsewhere
from caudal.engine.histogram import HistogramCounts
from caudal.engine.stats import EngineStats, PoolUse
from caudal.engine.tiers.tier_stats import TierStats
from caudal.loading.packaged import OWN_ADAPTER

NOBODY = "anyone"
"""The tenant of who needs no key."""

_STATES = ("used", "cached", "free")


def histogram_family(name: str, text: str, counted: HistogramCounts) -> Metric:
    """A histogram's counts."""
    return HistogramMetricFamily(name, text, buckets=buckets_of(counted), sum_value=counted.sum)


def buckets_of(counted: HistogramCounts) -> Sequence[tuple[str, float]]:
    """A histogram's counts up to each bound, as Prometheus' client takes them."""
    names = map(floatToGoString, (*counted.bounds, float("inf")))
    return list(zip(names, accumulate(counted.counts), strict=True))


class HistogramCollector(Collector):
    """Shows a histogram that is cheaper to count with than Prometheus' own.

    Args:
        name: Its name.
        text: What it counts.
        bounds: See `Histogram`.

    Attributes:
        observe: Count a value; by one thread.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._histogram = Histogram(bounds)
        self.observe = self._histogram.observe

    def collect(self) -> Iterator[Metric]:
        """The counts so far."""
        yield histogram_family(self._name, self._text, self._histogram.counts)


class EngineCollector(Collector):
    """Reads the engine at scrape time: nothing is counted twice, and nothing per token.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering the collector must not take a snapshot."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One snapshot as metrics. What this model hasn't got has a name all the same."""
        stats, batches = self._engine.stats(), self._engine.batches()
        yield from self._memory(stats)
        gauges = {
            "requests_waiting": ("Sequences in the queue.", stats.waiting),
            "requests_running": ("Sequences that have a place.", stats.running),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"caudal_{name}", text, value)
        counters: dict[str, tuple[str, float]] = {
            "prompt_tokens": (
                "Prompt tokens of started requests: those that the prefix cache is asked for.",
                stats.prompt_tokens,
            ),
            "prefix_cache_hit_tokens": (
                "Prompt tokens that came from the prefix cache.",
                stats.cache_hit_tokens,
            ),
            "generation_tokens": ("Tokens generated.", stats.generated_tokens),
            "preemptions": ("Sequences that lost their place.", stats.preemptions),
            "executor_failures": ("Batches that failed.", stats.executor_failures),
            "speculative_drafts": (
                "Times that tokens were guessed for a sequence.",
                stats.drafts.drafts,
            ),
            "speculative_proposed_tokens": (
                "Tokens that were guessed and computed.",
                stats.drafts.proposed,
            ),
            "speculative_accepted_tokens": (
                "Tokens that were guessed right.",
                stats.drafts.accepted,
            ),
            "speculative_draft_seconds": (
                "What a draft model, or the model's own layer for it, has computed for.",
                stats.drafts.seconds,
            ),
            "speculative_failures": (
                "Times that what guesses tokens failed; it isn't asked again.",
                stats.drafts.failures,
            ),
        }
        for name, (text, total) in counters.items():
            yield CounterMetricFamily(f"caudal_{name}", text, total)
        lost = CounterMetricFamily(
            "caudal_prefix_lost_tokens",
            "Prompt tokens that were cached, but behind other tokens: what prompts lost that break "
            "their own prefix, by where (the first token that differs is this one, or behind it).",
            labels=["position"],
        )
        for position, tokens in stats.lost_tokens.items():
            lost.add_metric([str(position)], tokens)
        yield lost
        yield _accepted_at(stats.drafts)
        yield from _tiers(stats.tiers)
        for name, text, counts in (
            ("iteration_duration_seconds", "What batches took to compute.", batches.seconds),
            ("iteration_sequences", "Sequences of batches.", batches.sequences),
            ("iteration_tokens", "Tokens of batches.", batches.tokens),
        ):
            yield histogram_family(f"caudal_{name}", text, counts)
        adapters = GaugeMetricFamily(
            "caudal_adapter_requests",
            "Requests that wait or run, by the adapter that they use.",
            labels=["adapter"],
        )
        for adapter, requests in stats.adapters.items():
            if adapter != OWN_ADAPTER:
                adapters.add_metric([adapter], requests)
        yield adapters
        tenants = GaugeMetricFamily(
            "caudal_tenant_requests_waiting",
            "Sequences in the queue, by tenant; of those that have any there.",
            labels=["tenant"],
        )
        for tenant, number in self._engine.waiting_of_tenants().items():
            tenants.add_metric([tenant or NOBODY], number)
        yield tenants

    def _memory(self, stats: EngineStats) -> Iterator[Metric]:
        blocks = PoolUse(
            total=stats.blocks_total,
            free=stats.blocks_free,
            used=stats.blocks_used,
            cached=stats.blocks_cached,
        )
        yield GaugeMetricFamily(
            "caudal_kv_usage_ratio",
            "Share of the KV blocks that running sequences have, 0 to 1.",
            blocks.used / blocks.total if blocks.total else 0.0,
        )
        yield _uses(
            "kv_blocks", "KV blocks by state: of running sequences, cached, or free.", {"": blocks}
        )
        yield _uses(
            "window_blocks",
            "Blocks of the pools for layers with windows, by window and by state.",
            {str(window): use for window, use in stats.windows.items()},
            "window",
        )
        yield _uses(
            "state_slots",
            "Slots for recurrent states by state: of running sequences, snapshots, or free.",
            {} if stats.slots is None else {"": stats.slots},
        )


def _tiers(stats: TierStats | None) -> Iterator[Metric]:
    """What lies behind the pools."""
    size = GaugeMetricFamily(
        "caudal_prefix_tier_bytes",
        "What prefixes take in memory beyond the pools, and on the disk.",
        labels=["tier"],
    )
    tokens = CounterMetricFamily(
        "caudal_prefix_tier_hit_tokens",
        "Tokens that were brought back to the pools, by where from.",
        labels=["tier"],
    )
    requests = CounterMetricFamily(
        "caudal_prefix_tier_requests",
        "Requests that looked there for more than the pools had, by whether something was brought "
        "back, there was nothing, or computing was faster.",
        labels=["result"],
    )
    pieces = CounterMetricFamily(
        "caudal_prefix_tier_pieces",
        "Blocks and snapshots that were written to the disk, deleted there to make room, dropped "
        "since it couldn't keep pace, or failed to be written or read.",
        labels=["event"],
    )
    if stats is not None:
        size.add_metric(["memory"], stats.memory_bytes)
        size.add_metric(["disk"], stats.disk_bytes)
        tokens.add_metric(["memory"], stats.memory_hit_tokens)
        tokens.add_metric(["disk"], stats.disk_hit_tokens)
        requests.add_metric(["hit"], stats.hits)
        requests.add_metric(["miss"], stats.misses)
        requests.add_metric(["declined"], stats.declined)
        pieces.add_metric(["written"], stats.written)
        pieces.add_metric(["evicted"], stats.evicted)
        pieces.add_metric(["dropped"], stats.dropped)
        pieces.add_metric(["failed"], stats.failures)
    yield from (size, tokens, requests, pieces)


def _uses(name: str, text: str, uses: Mapping[str, PoolUse], label: str | None = None) -> Metric:
    labels = ["state"] if label is None else [label, "state"]
    family = GaugeMetricFamily(f"caudal_{name}", text, labels=labels)
    for value, use in uses.items():
        for state in _STATES:
            values = [state] if label is None else [value, state]
            family.add_metric(values, getattr(use, state))
    return family


def _accepted_at(counts: DraftCounts) -> Metric:
    """By position; of those at which nothing was ever right only the first."""
    family = CounterMetricFamily(
        "caudal_speculative_position_accepted_tokens",
        "Tokens that were guessed right, by their position in the guess, from 0.",
        labels=["position"],
    )
    for position, accepted in enumerate(counts.accepted_at):
        if accepted or not position:
            family.add_metric([str(position)], accepted)
    return family
