"""Models' figures under vLLM's names, for what reads those: gateways, autoscalers, dashboards.

Names and labels are those of vLLM's V1 engine (`vllm/v1/metrics/loggers.py`). The Gateway API's
inference extension and llm-d choose a server by `num_requests_waiting`, `num_requests_running`,
`kv_cache_usage_perc`, `lora_requests_info` and `cache_config_info`. Bounds of histograms are
Caudal's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from caudal.service.service import Service

ENGINE = "0"
"""The number of a model's engine: vLLM may have several of one model, Caudal has one."""

_SAME = {
    "requests_running": ("num_requests_running", "Requests in model execution batches."),
    "requests_waiting": ("num_requests_waiting", "Requests waiting to be processed."),
    "kv_usage_ratio": ("kv_cache_usage_perc", "KV cache usage; 1 means 100 percent."),
    "prefix_cache_hit_tokens": ("prefix_cache_hits", "Tokens found in the prefix cache."),
    "preemptions": ("num_preemptions", "Preemptions."),
    "generation_tokens": ("generation_tokens", "Tokens generated."),
    "batch_tokens": ("iteration_tokens_total", "Tokens of an iteration."),
    "time_to_first_token_seconds": ("time_to_first_token_seconds", "Time to first token."),
    "inter_token_latency_seconds": ("inter_token_latency_seconds", "Time between two tokens."),
    "request_time_per_output_token_seconds": (
        "request_time_per_output_token_seconds",
        "Mean time between the tokens of a request.",
    ),
    "e2e_request_latency_seconds": ("e2e_request_latency_seconds", "Arrival to end."),
    "request_queue_time_seconds": ("request_queue_time_seconds", "Time spent waiting."),
    "request_prefill_time_seconds": ("request_prefill_time_seconds", "Time spent in prefill."),
    "request_decode_time_seconds": ("request_decode_time_seconds", "Time spent in decode."),
    "request_prompt_tokens": ("request_prompt_tokens", "Prompt tokens of a request."),
    "request_output_tokens": ("request_generation_tokens", "Generated tokens of a request."),
}
"""Ours, to vLLM's name and what it says; without prefixes."""

_PROMPT_TOKENS = {
    "prompt_tokens": "Prompt tokens processed.",
    "prefix_cache_queries": "Tokens that were looked for in the prefix cache.",
}
"""Two of vLLM's that are one of ours: every prompt is looked for."""

_REASONS = {
    "stop": "stop",
    "length": "length",
    "cancelled": "abort",
    "timeout": "abort",
    "failed": "error",
}
"""How requests end, in our words and vLLM's."""


def vllm_families(figures: Mapping[str, Metric], loaded: Sequence[Service]) -> Iterator[Metric]:
    """Figures of loaded models under vLLM's names.

    Args:
        figures: Ours, by name, each with the label `model`.
        loaded: The models.
    """
    for own, (name, text) in _SAME.items():
        yield from _renamed(figures, own, name, text)
    for name, text in _PROMPT_TOKENS.items():
        yield from _renamed(figures, "prompt_tokens", name, text)
    yield _ends(figures)
    yield _adapters(figures, loaded)
    yield _cache_configurations(loaded)


def _renamed(figures: Mapping[str, Metric], own: str, name: str, text: str) -> Iterator[Metric]:
    begin, name = f"caudal_{own}", f"vllm:{name}"
    family = figures.get(begin)
    if family is None:  # no model is loaded
        return
    renamed = Metric(name, text, family.type)
    for sample in family.samples:
        labels = {"model_name": sample.labels["model"], "engine": ENGINE}
        labels |= {label: value for label, value in sample.labels.items() if label != "model"}
        renamed.add_sample(name + sample.name.removeprefix(begin), labels, sample.value)
    yield renamed


def _ends(figures: Mapping[str, Metric]) -> Metric:
    counts: dict[tuple[str, str], float] = {}
    family = figures.get("caudal_requests_finished")
    for sample in [] if family is None else family.samples:
        if sample.name.endswith("_total"):
            key = sample.labels["model"], _REASONS[sample.labels["reason"]]
            counts[key] = counts.get(key, 0.0) + sample.value
    ends = CounterMetricFamily(
        "vllm:request_success",
        "Requests that ended, by reason.",
        labels=["model_name", "engine", "finished_reason"],
    )
    for (model, reason), count in counts.items():
        ends.add_metric([model, ENGINE, reason], count)
    return ends


def _adapters(figures: Mapping[str, Metric], loaded: Sequence[Service]) -> Metric:
    """Adapters that requests use, all of them as running ones: readers add up both."""
    family = figures.get("caudal_adapter_requests")
    samples = [] if family is None else family.samples
    used = sorted({sample.labels["adapter"] for sample in samples if sample.value})
    infos = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters with requests; the value is the time.",
        labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
    )
    held = sum(len(service.adapters) for service in loaded)
    if held:
        infos.add_metric([str(held), "", ",".join(used)], time.time())
    return infos


def _cache_configurations(loaded: Sequence[Service]) -> Metric:
    """The pools' sizes. vLLM doesn't name the model there, but has no more than one."""
    infos = GaugeMetricFamily(
        "vllm:cache_config_info",
        "The KV cache; always 1.",
        labels=[
            *("block_size", "cache_dtype", "enable_prefix_caching"),
            *("num_gpu_blocks", "engine", "model_name"),
        ],
    )
    for service in loaded:
        limits, kv_type = service.info.limits, service.info.facts.loaded.executor.kv_type
        values = [str(limits.block_size), kv_type, str(limits.prefix_cache)]
        infos.add_metric([*values, str(limits.num_blocks), ENGINE, service.names[0]], 1)
    return infos
