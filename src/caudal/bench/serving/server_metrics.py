"""How long requests waited in the server's queue, from its own metrics."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from httptools import HttpParserError

from caudal.bench.serving.http_client import StreamClient

QUEUE_HISTOGRAMS = ("caudal_request_queue_time_seconds", "vllm:request_queue_time_seconds")
"""Names that servers have for it."""


@dataclass(frozen=True, slots=True)
class Waited:
    """A histogram at some time.

    Attributes:
        buckets: How many waited at most so many seconds.
        sum: Seconds of all.
    """

    buckets: Mapping[float, float]
    sum: float

    def since(self, before: Waited) -> dict[str, float]:
        """What came since: the mean and percentiles, the latter as exact as the buckets are."""
        counts = {
            bound: count - before.buckets.get(bound, 0.0) for bound, count in self.buckets.items()
        }
        total = counts.get(math.inf, 0.0)
        if total <= 0:
            return {}
        percentiles = {
            f"p{percent}": _quantile(counts, percent / 100 * total) for percent in (50, 90, 95, 99)
        }
        return {"mean": max(0.0, self.sum - before.sum) / total, **percentiles}


async def queue_times(client: StreamClient, models: Collection[str]) -> Waited | None:
    """What a server's metrics say, for one model where it has several; None where it has none."""
    try:
        answer = await client.get("/metrics")
    except (OSError, HttpParserError):
        return None
    return (
        read_queue_times(answer.body.decode(errors="replace"), models)
        if answer.status == HTTPStatus.OK
        else None
    )


def read_queue_times(text: str, models: Collection[str]) -> Waited | None:
    """The same, of what `/metrics` says."""
    from prometheus_client.parser import text_string_to_metric_families

    buckets: dict[float, float] = defaultdict(float)
    total = 0.0
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, LookupError):
        return None
    for family in families:
        if family.name not in QUEUE_HISTOGRAMS:
            continue
        for sample in family.samples:
            model = sample.labels.get("model") or sample.labels.get("model_name")
            if model is not None and model not in models:
                continue
            if sample.name.endswith("_bucket"):
                with contextlib.suppress(KeyError, ValueError):  # no bucket of a histogram
                    buckets[float(sample.labels["le"])] += sample.value
            elif sample.name.endswith("_sum"):
                total += sample.value
        if buckets:
            break  # the same figures may be there under another program's name, too
    return Waited(dict(buckets), total) if buckets else None


def _quantile(counts: Mapping[float, float], rank: float) -> float:
    """Where a rank lies within its bucket, as Prometheus reckons it."""
    lower, below = 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= rank:
            if math.isinf(bound) or count == below:
                return lower
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower
