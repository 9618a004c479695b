"""`GET /props` and `GET /slots`: what llama.cpp's clients ask the server about itself."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from caudal import __version__
from caudal.server.asked import queried_model
from caudal.server.encoding import JSONReply
from caudal.server.errors import error_response
from caudal.server.llama_cpp.completion_schema import default_params
from caudal.server.llama_cpp.settings import settings

router = APIRouter()


@router.get("/props")
async def props(request: Request) -> dict[str, Any]:
    """The server's properties, under llama.cpp's names."""
    model = await queried_model(request)
    info = model.info
    return {
        "default_generation_settings": {
            "n_ctx": model.max_model_len,
            "speculative": info.limits.speculative is not None,
            "params": settings(
                default_params(model.facts.loaded.sampling), info.limits.speculative
            ),
        },
        "total_slots": info.limits.max_num_seqs,
        "model_alias": model.names[0],
        "model_path": model.facts.loaded.model,
        "model_ftype": model.facts.loaded.tensors_text,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": info.template.sources[0],
        "bos_token": info.bos_token,
        "eos_token": info.eos_token,
        "build_info": f"caudal-{__version__}",
        "is_sleeping": False,
    }


@router.get("/slots", response_model=None)
async def slots(request: Request, fail_on_no_slot: str | None = None) -> Response:
    """Places for running sequences, under llama.cpp's names.

    A sequence has no slot of its own here: of the places that there are, as many are shown to be
    taken as sequences run.
    """
    model = await queried_model(request)
    running = (await model.stats()).running
    limits = model.info.limits
    places = limits.max_num_seqs
    if fail_on_no_slot is not None and running >= places:
        return error_response(
            request.scope, 503, "no slot available", code="no_slot", retry_after=1
        )
    return JSONReply(
        [
            {
                "id": place,
                "n_ctx": model.max_model_len,
                "speculative": limits.speculative is not None,
                "is_processing": place < running,
            }
            for place in range(places)
        ]
    )
