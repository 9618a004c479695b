"""`GET /v1/models`: what is served, and what runs it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from caudal.server.anthropic.errors import speaks_anthropic
from caudal.server.anthropic.models import model_info, model_page
from caudal.server.asked import model_registry
from caudal.service.adapted import AdaptedService
from caudal.service.facts import ServedFacts
from caudal.service.service import Service

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The names that requests may use. In Anthropic's shape, where `anthropic-version` is sent."""
    models = model_registry(request).by_name
    if speaks_anthropic(request.scope):
        return model_page(models, request.query_params)
    cards = [_card(model, name) for name, model in models.items()]
    return {"object": "list", "data": cards}


@router.get("/v1/models/{name:path}")
async def retrieve_model(name: str, request: Request) -> dict[str, Any]:
    """One model. Names may have slashes and colons."""
    name, model = await model_registry(request).resolve(name)
    return model_info(model, name) if speaks_anthropic(request.scope) else _card(model, name)


def _card(model: Service, name: str) -> dict[str, Any]:
    """A model, with what clients of vLLM (`max_model_len`) and llama.cpp (`meta`) look for."""
    loaded = model.facts.loaded
    root, parent = model.names[0], None
    if isinstance(model, AdaptedService):  # as vLLM has it
        root, parent = model.adapter.path, model.base.names[0]
    return {
        "id": name,
        "object": "model",
        "created": model.info.created,
        "owned_by": "caudal",
        "root": root,
        "parent": parent,
        "aliases": list(model.names),
        "max_model_len": model.max_model_len,
        "context_length": model.max_model_len,
        "meta": {
            "n_ctx": model.max_model_len,
            "n_ctx_train": loaded.context_length,
            "n_vocab": loaded.vocab_size,
            "size": loaded.executor.weight_bytes,
        },
        "capabilities": sorted(model.tasks),
        "max_num_seqs": model.info.limits.max_num_seqs,
        "max_queue": model.info.limits.max_queue,
        "default_sampling_params": loaded.sampling.values(),
        "facts": _texts(model.facts),
    }


def _texts(facts: ServedFacts) -> dict[str, str]:
    """What was loaded and what runs it, all as text."""
    loaded, executor = facts.loaded, facts.loaded.executor
    texts = {
        "model": loaded.model,
        "architecture": loaded.architecture,
        "tasks": ", ".join(sorted(loaded.tasks)),
        "tensors": loaded.tensors_text,
        "tokenizer": loaded.tokenizer_text,
        "embedding": loaded.embedding_text,
        "max_model_len": str(loaded.max_model_len),
        "context_length": str(loaded.context_length),
        "backend": executor.backend,
        "instruction_set": executor.instruction_set,
        "threads": str(executor.threads),
        "activations": executor.activations,
        "kv_type": executor.kv_type,
        "weight_bytes": str(executor.weight_bytes),
    }
    if loaded.chat_template is not None:
        texts["chat_template"] = loaded.chat_template
    memory = loaded.memory
    if memory is not None:
        texts |= {
            "kv_tokens": str(memory.kv.tokens),
            "kv_sequences": f"{memory.sequences(loaded.max_model_len):.1f}",
            "kv_bytes": str(memory.kv.bytes),
        }
        for pool in memory.windows:
            texts[f"window_{pool.window}_bytes"] = str(pool.bytes)
        if memory.states is not None:
            texts["state_slots"] = str(memory.states.num_slots)
            texts["state_bytes"] = str(memory.states.bytes)
    if facts.tool_parser is not None:
        texts["tool_parser"] = facts.tool_parser
    if facts.reasoning_parser is not None:
        texts["reasoning_parser"] = facts.reasoning_parser
    return texts
