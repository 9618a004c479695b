"""`GET /metrics`: the figures of one model as they are, or of several with the model as a label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from caudal.errors import EngineDeadError
from caudal.service.models import ModelStatus
from caudal.service.service import Service

LABEL = "model"


async def merged_figures(loaded: Sequence[Service], statuses: Sequence[ModelStatus]) -> bytes:
    """The figures of several models in one text, each with its model's name.

    Args:
        loaded: Those that are loaded; one that ends meanwhile is left out.
        statuses: All models, for what is known of those besides.
    """
    families: dict[str, Metric] = {}
    for service in loaded:
        name = service.names[0]
        try:
            text = await service.metrics()
        except EngineDeadError:
            continue
        for family in text_string_to_metric_families(text.decode()):
            into = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                labels = {LABEL: name, **sample.labels}
                into.add_sample(sample.name, labels, sample.value)
    return _text([*families.values(), *_states(statuses)])


def _states(statuses: Sequence[ModelStatus]) -> Iterator[Metric]:
    memory = GaugeMetricFamily(
        "caudal_model_memory_bytes", "Memory that a model has; 0 if unloaded.", labels=[LABEL]
    )
    waiting = GaugeMetricFamily(
        "caudal_model_requests_waiting",
        "Requests that wait until a model is loaded, or has its turn.",
        labels=[LABEL],
    )
    loaded = GaugeMetricFamily("caudal_model_loaded", "Whether a model is loaded.", labels=[LABEL])
    for status in statuses:
        if status.leads_to:
            continue  # a route has none of its own
        name = [status.names[0]]
        memory.add_metric(name, status.memory)
        waiting.add_metric(name, status.waiting)
        loaded.add_metric(name, status.state == "loaded")
    yield from (memory, waiting, loaded)


class _Given(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _text(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families))
    return generate_latest(registry)
