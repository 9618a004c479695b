"""`GET /v1/models`: what is served, and what runs it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from caudal.server.anthropic.errors import speaks_anthropic
from caudal.server.anthropic.models import model_info, model_page
from caudal.server.state import served_model
from caudal.service.served_model import ServedModel

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The names that requests may use. In Anthropic's shape, where `anthropic-version` is sent."""
    model = served_model(request)
    if speaks_anthropic(request.scope):
        return model_page(model, request.query_params)
    return {"object": "list", "data": [_card(model, name) for name in model.names]}


@router.get("/v1/models/{name:path}")
async def retrieve_model(name: str, request: Request) -> dict[str, Any]:
    """One model. Names may have slashes and colons."""
    model = served_model(request)
    name = model.name_for(name)
    return model_info(model, name) if speaks_anthropic(request.scope) else _card(model, name)


def _card(model: ServedModel, name: str) -> dict[str, Any]:
    """A model, with what clients of vLLM (`max_model_len`) and llama.cpp (`meta`) look for."""
    facts = model.facts
    meta = {
        "n_ctx": model.max_model_len,
        "n_ctx_train": int(facts.get("context_length", model.max_model_len)),
        "n_vocab": model.tokenizer.vocab_size,
    }
    if "weight_bytes" in facts:
        meta["size"] = int(facts["weight_bytes"])
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "caudal",
        "root": model.names[0],
        "parent": None,
        "aliases": list(model.names),
        "max_model_len": model.max_model_len,
        "context_length": model.max_model_len,
        "meta": meta,
        "capabilities": sorted(model.tasks),
        "max_num_seqs": model.engine.config.max_num_seqs,
        "max_queue": model.engine.config.max_queue,
        "facts": dict(model.facts),
    }
