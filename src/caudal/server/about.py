"""What tools ask a server about itself, where they know vLLM or SGLang.

The figures are Caudal's own. What has no meaning here, such as the parallelism of several GPUs, is
given as what it amounts to, or left out.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from caudal import __version__
from caudal.machine import machine_facts
from caudal.server.asked import queried_model
from caudal.service.facts import ServedFacts
from caudal.service.service import Service

router = APIRouter()

_ALGORITHMS = {"ngram": "NGRAM", "draft": "STANDALONE", "mtp": "NEXTN"}
"""SGLang's names for what guesses tokens."""


@router.get("/version")
async def version() -> dict[str, str]:
    """Caudal's version, as vLLM gives its own."""
    return {"version": __version__}


@router.get("/server_info")
async def server_info(request: Request) -> dict[str, Any]:
    """Limits and policies of the server, under SGLang's names."""
    model = await queried_model(request)
    limits = model.info.limits
    stats = await model.stats()
    tokens = limits.num_blocks * limits.block_size
    return {
        **_model_names(model),
        "version": __version__,
        "status": "ready" if model.healthy else "failed",
        "served_model_name": model.names[0],
        "context_length": model.max_model_len,
        "max_total_tokens": tokens,
        "max_total_num_tokens": tokens,
        "max_running_requests": limits.max_num_seqs,
        "max_queued_requests": limits.max_queue,
        "chunked_prefill_size": limits.max_num_batched_tokens,
        "page_size": limits.block_size,
        **_other_kinds(model),
        "schedule_policy": "lpm" if limits.schedule == "prefix" else "fcfs",
        "disable_radix_cache": not limits.prefix_cache,
        **_further_prefixes(model),
        "speculative_algorithm": _ALGORITHMS.get((limits.speculative or "").partition(":")[0]),
        "speculative_num_draft_tokens": limits.num_speculative_tokens or None,
        "kv_cache_dtype": model.facts.loaded.executor.kv_type,
        "tool_call_parser": model.facts.tool_parser,
        "reasoning_parser": model.facts.reasoning_parser,
        "is_embedding": "generate" not in model.tasks,
        "caudal": _measured(model.facts),
        "tp_size": 1,
        "dp_size": 1,
        "internal_states": [{"num_running_reqs": stats.running, "num_queue_reqs": stats.waiting}],
    }


@router.get("/model_info")
async def model_info(request: Request) -> dict[str, Any]:
    """What kind of model this is, under SGLang's names."""
    model = await queried_model(request)
    return {
        **_model_names(model),
        "is_generation": "generate" in model.tasks,
        "model_type": model.facts.loaded.architecture,
        "preferred_sampling_params": None,
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }


def _measured(facts: ServedFacts) -> dict[str, Any]:
    """What decides answers and how fast they come, so that a measurement can be made again."""
    loaded, executor = facts.loaded, facts.loaded.executor
    return {
        "fingerprint": facts.fingerprint,
        "architecture": loaded.architecture,
        "tensors": loaded.tensors_text,
        "weights_sha256": loaded.weights_hash,
        "chat_template_sha256": loaded.chat_template_hash,
        "backend": executor.backend,
        "instruction_set": executor.instruction_set,
        "threads": executor.threads,
        "activations": executor.activations,
        "machine": machine_facts(),
    }


def _other_kinds(model: Service) -> dict[str, Any]:
    """What there is besides the keys and values of all tokens; SGLang has no names for it."""
    memory = model.facts.loaded.memory
    if memory is None:
        return {}
    kinds: dict[str, Any] = {}
    if memory.windows:
        kinds["window_tokens"] = {
            str(pool.window): pool.num_blocks * pool.block_size for pool in memory.windows
        }
    if memory.states is not None:
        kinds["state_slots"] = memory.states.num_slots
    return kinds


def _further_prefixes(model: Service) -> dict[str, Any]:
    """What there is for prefixes beyond the pools; not where, which is for who runs the server."""
    limits, memory = model.info.limits, model.facts.loaded.memory
    if memory is None:
        return {}
    sizes = {"prefix_memory": limits.prefix_memory, "prefix_store": limits.prefix_store_size}
    return {
        name: {"bytes": size, "tokens": memory.kept_tokens(size)}
        for name, size in sizes.items()
        if size
    }


def _model_names(model: Service) -> dict[str, str]:
    """A model is one file: its tokenizer is where it is."""
    path = model.facts.loaded.model
    return {"model_path": path, "tokenizer_path": path}
