"""`POST /tokenize` and `POST /detokenize`, as in vLLM."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request

from caudal.server.body import json_body
from caudal.server.openai.chat_schema import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from caudal.server.state import served_model

router = APIRouter()


@router.post("/tokenize")
async def tokenize(
    body: Annotated[TokenizeRequest, json_body(TokenizeRequest)], request: Request
) -> dict[str, Any]:
    """Token ids of a text or a conversation, as the routes that answer them would see it."""
    model = served_model(request)
    model.name_for(body.model)
    if isinstance(body, TokenizeChatRequest):
        tokens = (await model.prepare_chat(body.conversation())).tokens
    else:
        tokens = await model.encode_text(body.prompt, add_special=body.add_special_tokens)
    return {"tokens": tokens, "count": len(tokens), "max_model_len": model.max_model_len}


@router.post("/detokenize")
async def detokenize(
    body: Annotated[DetokenizeRequest, json_body(DetokenizeRequest)], request: Request
) -> dict[str, Any]:
    """The text of token ids, control tokens included."""
    model = served_model(request)
    model.name_for(body.model)
    return {"prompt": await model.decode(body.tokens)}
