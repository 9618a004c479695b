"""Counts by labels, for what happens with every request: in dictionaries, within a microsecond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from caudal.service.engine_collector import Histogram, buckets_of


class Counts(Collector):
    """A counter with labels. Used by one thread.

    Args:
        name: Its name, without `_total`.
        text: What it counts.
        labels: The names of its labels.
        registry: Where it is shown.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._counts: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def add(self, amount: float, *values: str) -> None:
        """Count something of these labels."""
        self._counts[values] = self._counts.get(values, 0) + amount

    def collect(self) -> Iterator[Metric]:
        """The counts so far."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count)
        yield family


class Histograms(Collector):
    """A histogram for each value of a label. Used by one thread.

    Args:
        name: Its name.
        text: What it counts.
        label: The name of the label.
        bounds: See `Histogram`.
        registry: Where it is shown.
    """

    def __init__(
        self,
        name: str,
        text: str,
        label: str,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._bounds = bounds
        self._histograms: dict[str, Histogram] = {}
        registry.register(self)

    def observe(self, value: float, label: str) -> None:
        """Count a value."""
        histogram = self._histograms.get(label)
        if histogram is None:
            histogram = self._histograms[label] = Histogram(self._bounds)
        histogram.observe(value)

    def collect(self) -> Iterator[Metric]:
        """The counts so far."""
        family = HistogramMetricFamily(self._name, self._text, labels=[self._label])
        for label, histogram in self._histograms.items():
            counts = histogram.counts
            family.add_metric([label], buckets_of(counts), counts.sum)
        yield family
