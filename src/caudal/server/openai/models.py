"""`GET /v1/models`: what there is, whether it is loaded, and what runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request

from caudal.server.anthropic.errors import speaks_anthropic
from caudal.server.anthropic.models import model_info, model_page
from caudal.server.asked import served_models
from caudal.server.ps import status_fields
from caudal.server.tenancy import tenant_of
from caudal.server.tenant_models import allowed_statuses
from caudal.service.adapted import AdaptedService
from caudal.service.facts import ServedFacts
from caudal.service.models import Models, ModelStatus
from caudal.service.service import Service

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The names that requests may use. In Anthropic's shape, where `anthropic-version` is sent."""
    models: Models = request.app.state.models
    there = [each for each in await models.statuses() if not each.deleted]
    rules = tenant_of(request.scope).rules
    adapted = [each for each in _adapted(there) if rules.allows_any(each.names)]
    statuses = [*allowed_statuses(there, rules), *adapted]
    if speaks_anthropic(request.scope):
        return model_page(statuses, request.query_params)
    cards = [_card(status, name) for status in statuses for name in status.names]
    return {"object": "list", "data": cards}


@router.get("/v1/models/{name:path}")
async def retrieve_model(name: str, request: Request) -> dict[str, Any]:
    """One model, loaded or not. Names may have slashes and colons."""
    status = await served_models(request).status(name)
    if name not in status.names:
        status = next((each for each in _adapted([status]) if name in each.names), status)
    if speaks_anthropic(request.scope):
        return model_info(status, name)
    return _card(status, name)


def _adapted(statuses: Sequence[ModelStatus]) -> Iterator[ModelStatus]:
    """Models that are loaded, with each of their adapters."""
    for status in statuses:
        service = status.service
        for adapter in () if service is None else service.adapters:
            assert service is not None
            adapted = AdaptedService(service, adapter)
            yield replace(status, names=(adapter.name,), service=adapted)


def _card(status: ModelStatus, name: str) -> dict[str, Any]:
    """A model: what is known of it without its being loaded, and all else where it is."""
    root, parent = status.names[0], None
    if isinstance(status.service, AdaptedService):  # as vLLM has it
        root, parent = status.service.adapter.path, status.service.base.names[0]
    card = {
        "id": name,
        "object": "model",
        "created": status.created,
        "owned_by": "caudal",
        "root": root,
        "parent": parent,
        "aliases": list(status.names),
        "max_model_len": status.max_model_len,
        "context_length": status.max_model_len,
        "capabilities": None if status.tasks is None else sorted(status.tasks),
        "meta": {"size": status.size},
        "status": {"value": status.state, **status_fields(status)},
    }
    if status.leads_to:
        card["leads_to"] = list(status.leads_to)
    return card if status.service is None else card | _loaded_card(status.service)


def _loaded_card(model: Service) -> dict[str, Any]:
    """With what clients of vLLM (`max_model_len`) and llama.cpp (`meta`) look for."""
    loaded = model.facts.loaded
    return {
        "created": model.info.created,
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
    if loaded.package is not None:
        texts["package"] = str(loaded.package)
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
    if loaded.draft is not None:
        texts |= {
            "draft_model": loaded.draft.model,
            "draft_weight_bytes": str(loaded.draft.weight_bytes),
            "draft_kv_bytes": str(loaded.draft.memory.bytes),
        }
        if loaded.draft.state_bytes:
            texts["draft_state_bytes"] = str(loaded.draft.state_bytes)
    if facts.tool_parser is not None:
        texts["tool_parser"] = facts.tool_parser
    if facts.reasoning_parser is not None:
        texts["reasoning_parser"] = facts.reasoning_parser
    return texts
