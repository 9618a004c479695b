"""`GET /metrics`: what the server and its models count, in one text.

Figures of a model have its name as the label `model`, whether there is one model or many, so that a
dashboard needn't know. docs/metrics.md has all names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from caudal.errors import CaudalError
from caudal.server.vllm_metrics import vllm_exposition
from caudal.service.exposition import Expositions, exposition
from caudal.service.metrics import MODEL
from caudal.service.models import Models, ModelStatus
from caudal.service.service import Service

MODEL_SECONDS = 2.0
"""How long a model may take to tell its figures. One that is stuck is left out: all others' must
still be there, for that is when they are needed."""


async def scraped(
    models: Models, registry: CollectorRegistry, name: str | None = None, *, vllm: bool = False
) -> bytes:
    """All figures, as the text that Prometheus expects. Nothing is loaded for them.

    Args:
        models: The models.
        registry: What the server itself counts.
        name: Only those of this model, and the server's.
        vllm: Models' figures under vLLM's names, too.

    Raises:
        UnknownModelError: There is no such model.
    """
    statuses = await _statuses(models, name)
    loaded = [each.service for each in statuses if each.service is not None]
    figures = Expositions()
    for text in await asyncio.gather(*map(_text_of, loaded)):
        figures.add(text)
    more = vllm_exposition(figures, loaded) if vllm else b""
    own = exposition([*_states(statuses), *_processes(statuses), *registry.collect()])
    return figures.encoded() + own + more


async def _statuses(models: Models, name: str | None) -> Sequence[ModelStatus]:
    if name:
        found = await models.status(name)
        # An alias or a route has no figures of its own.
        statuses = [found] if not found.leads_to else [await models.status(found.leads_to[0])]
    else:
        try:
            statuses = list(await models.statuses())
        except CaudalError:  # the store can't be read: what is loaded runs all the same
            statuses = [
                ModelStatus(names=service.names, state="loaded", service=service)
                for service in models.services
            ]
    return [status for status in statuses if not status.leads_to]


async def _text_of(service: Service) -> bytes:
    try:
        return await asyncio.wait_for(service.metrics(), MODEL_SECONDS)
    except (CaudalError, TimeoutError):  # it has ended meanwhile, or is about to
        return b""


def _states(statuses: Sequence[ModelStatus]) -> Iterator[Metric]:
    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"caudal_model_{name}", text, labels=[MODEL])

    def counter(name: str, text: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"caudal_{name}", text, labels=[MODEL])

    memory = gauge("memory_bytes", "Memory that a model has; 0 if unloaded.")
    waiting = gauge("requests_waiting", "Requests that wait until a model is loaded.")
    loaded = gauge("loaded", "Whether a model is loaded.")
    loads = counter("model_loads", "Times that a model was loaded.")
    load_seconds = counter("model_load_seconds", "Time that loading it took, all times together.")
    failures = counter("model_load_failures", "Times that a model could not be loaded.")
    unloads = counter("model_unloads", "Times that a model was unloaded.")
    unload_seconds = counter(
        "model_unload_seconds", "Time that unloading it took, all times together."
    )
    crashes = counter(
        "worker_crashes", "Times that a model's process ended though nobody had told it to."
    )
    for status in statuses:
        name, history = [status.names[0]], status.history
        memory.add_metric(name, status.memory)
        waiting.add_metric(name, status.waiting)
        loaded.add_metric(name, status.state == "loaded")
        loads.add_metric(name, history.loads)
        load_seconds.add_metric(name, history.load_seconds)
        failures.add_metric(name, history.load_failures)
        unloads.add_metric(name, history.unloads)
        unload_seconds.add_metric(name, history.unload_seconds)
        crashes.add_metric(name, history.crashes)
    yield from (memory, waiting, loaded)
    yield from (loads, load_seconds, failures, unloads, unload_seconds, crashes)
    yield _infos(statuses)


def _infos(statuses: Sequence[ModelStatus]) -> Metric:
    """What is said of loaded models."""
    facts = ["architecture", "kv_type", "block_size", "kv_blocks", "max_model_len"]
    infos = GaugeMetricFamily(
        "caudal_model_info",
        "What a loaded model is and runs with; always 1.",
        labels=[MODEL, *facts],
    )
    for status in statuses:
        if status.service is None:
            continue
        info = status.service.info
        loaded, limits = info.facts.loaded, info.limits
        values = [loaded.architecture, loaded.executor.kv_type, str(limits.block_size)]
        values += [str(limits.num_blocks), str(loaded.max_model_len)]
        infos.add_metric([status.names[0], *values], 1)
    return infos


def _processes(statuses: Sequence[ModelStatus]) -> Iterator[Metric]:
    """What the system says of models' processes, where they have their own."""
    families: dict[str, Metric] = {}
    for status in statuses:
        identity = status.process_id
        if identity is None:
            continue
        registry = CollectorRegistry()
        ProcessCollector("caudal_worker", pid=partial(int, identity), registry=registry)
        for family in registry.collect():
            into = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                into.add_sample(sample.name, {MODEL: status.names[0]}, sample.value)
    yield from families.values()
