"""Models' figures under vLLM's names, for what reads those: gateways, autoscalers, dashboards.

Names and labels are those of vLLM's V1 engine (`vllm/v1/metrics/loggers.py`). The Gateway API's
inference extension and llm-d choose a server by `num_requests_waiting`, `num_requests_running`,
`kv_cache_usage_perc`, `lora_requests_info` and `cache_config_info`. Bounds of histograms are
Caudal's own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from caudal.service.exposition import Expositions, exposition
from caudal.service.service import Service

ENGINE = "0"
"""The number of a model's engine: vLLM may have several of one model, Caudal has one."""

_MODEL = re.compile(r'([{,])model="')
"""Where the model's name begins in a sample's labels; a quote within a value isn't bare."""

_SAME = (
    ("requests_running", "num_requests_running", "Requests in model execution batches."),
    ("requests_waiting", "num_requests_waiting", "Requests waiting to be processed."),
    ("kv_usage_ratio", "kv_cache_usage_perc", "KV cache usage; 1 means 100 percent."),
    ("prompt_tokens_total", "prompt_tokens_total", "Prompt tokens processed."),
    (
        "prompt_tokens_total",
        "prefix_cache_queries_total",
        "Tokens that were looked for in the prefix cache.",
    ),
    ("prefix_cache_hit_tokens_total", "prefix_cache_hits_total", "Tokens found in the cache."),
    (
        "prefix_cache_hit_tokens_total",
        "prompt_tokens_cached_total",
        "Prompt tokens from the cache.",
    ),
    ("preemptions_total", "num_preemptions_total", "Preemptions."),
    (
        "speculative_drafts_total",
        "spec_decode_num_drafts_total",
        "Times that tokens were drafted.",
    ),
    (
        "speculative_proposed_tokens_total",
        "spec_decode_num_draft_tokens_total",
        "Draft tokens.",
    ),
    (
        "speculative_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "Draft tokens that were accepted.",
    ),
    (
        "speculative_position_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
        "Draft tokens that were accepted, by position.",
    ),
    ("generation_tokens_total", "generation_tokens_total", "Tokens generated."),
    ("iteration_tokens", "iteration_tokens_total", "Tokens of an iteration."),
    ("time_to_first_token_seconds", "time_to_first_token_seconds", "Time to first token."),
    ("inter_token_latency_seconds", "inter_token_latency_seconds", "Time between two tokens."),
    (
        "request_time_per_output_token_seconds",
        "request_time_per_output_token_seconds",
        "Mean time between the tokens of a request.",
    ),
    ("e2e_request_latency_seconds", "e2e_request_latency_seconds", "Arrival to end."),
    ("request_queue_time_seconds", "request_queue_time_seconds", "Time spent waiting."),
    ("request_prefill_time_seconds", "request_prefill_time_seconds", "Time spent in prefill."),
    ("request_decode_time_seconds", "request_decode_time_seconds", "Time spent in decode."),
    ("request_prompt_tokens", "request_prompt_tokens", "Prompt tokens of a request."),
    ("request_output_tokens", "request_generation_tokens", "Generated tokens of a request."),
)
"""Ours, vLLM's name, and what it says. Every prompt is looked for in the cache."""

_REASONS = {
    "stop": "stop",
    "length": "length",
    "cancelled": "abort",
    "timeout": "abort",
    "failed": "error",
}
"""How requests end, in our words and vLLM's."""


def vllm_exposition(figures: Expositions, loaded: Sequence[Service]) -> bytes:
    """Figures of loaded models under vLLM's names.

    Args:
        figures: Ours, as text.
        loaded: The models.
    """
    renamed = [_renamed(figures, *each) for each in _SAME]
    made = [_ends(figures), _adapters(figures, loaded), _cache_configurations(loaded)]
    return "".join(renamed).encode() + exposition(made)


def _renamed(figures: Expositions, own: str, name: str, text: str) -> str:
    """The lines of one of our families as those of one of vLLM's."""
    own, name = f"caudal_{own}", f"vllm:{name}"
    kind = figures.kind(own)
    if kind is None:  # no model is loaded
        return ""
    lines = re.sub(rf"^{own}", name, figures.samples(own), flags=re.MULTILINE)
    lines = _MODEL.sub(rf'\1engine="{ENGINE}",model_name="', lines)
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{lines}"


def _samples(figures: Expositions, name: str) -> Iterator[tuple[dict[str, str], float]]:
    for family in text_string_to_metric_families(figures.samples(name)):
        for sample in family.samples:
            yield sample.labels, sample.value


def _ends(figures: Expositions) -> Metric:
    counts: dict[tuple[str, str], float] = {}
    for labels, value in _samples(figures, "caudal_requests_finished_total"):
        key = labels["model"], _REASONS[labels["reason"]]
        counts[key] = counts.get(key, 0.0) + value
    ends = CounterMetricFamily(
        "vllm:request_success",
        "Requests that ended, by reason.",
        labels=["model_name", "engine", "finished_reason"],
    )
    for (model, reason), count in counts.items():
        ends.add_metric([model, ENGINE, reason], count)
    return ends


def _adapters(figures: Expositions, loaded: Sequence[Service]) -> Metric:
    """Adapters that requests use, all of them as running ones: readers add up both."""
    samples = _samples(figures, "caudal_adapter_requests")
    used = sorted({labels["adapter"] for labels, value in samples if value})
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
