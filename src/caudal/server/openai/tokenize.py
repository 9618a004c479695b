"""Texts to tokens and back, as in vLLM and in llama.cpp's server, and its `/apply-template`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request

from caudal.formats.tokenizer import Tokenizer
from caudal.server.body import json_body
from caudal.server.openai.tokenize_schema import (
    ApplyTemplateRequest,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeContentRequest,
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
    tokenizer = model.tokenizer
    if isinstance(body, TokenizeContentRequest):
        tokens = await model.encode_text(
            body.content,
            add_special=bool(body.add_special),
            parse_special=body.parse_special is not False,
            field="content",
        )
        if body.with_pieces:
            return {"tokens": [_piece(tokenizer, token) for token in tokens]}
        return {"tokens": tokens}
    if isinstance(body, TokenizeChatRequest):
        tokens = list((await model.prepare_chat(body.conversation())).tokens)
        if body.add_special_tokens:
            tokens = tokenizer.framed(tokens)
    else:
        special = body.add_special_tokens is not False
        tokens = await model.encode_text(body.prompt, add_special=special)
    return {
        "tokens": tokens,
        "token_strs": [*map(tokenizer.token_text, tokens)] if body.return_token_strs else None,
        "count": len(tokens),
        "max_model_len": model.max_model_len,
    }


@router.post("/detokenize")
async def detokenize(
    body: Annotated[DetokenizeRequest, json_body(DetokenizeRequest)], request: Request
) -> dict[str, Any]:
    """The text of token ids, control tokens included: vLLM's `prompt`, llama.cpp's `content`."""
    model = served_model(request)
    model.name_for(body.model)
    text = await model.decode(body.tokens)
    return {"prompt": text, "content": text}


@router.post("/apply-template")
async def apply_template(
    body: Annotated[ApplyTemplateRequest, json_body(ApplyTemplateRequest)], request: Request
) -> dict[str, Any]:
    """The prompt that a conversation becomes, as text."""
    model = served_model(request)
    model.name_for(body.model)
    model.check_task("generate")
    return {"prompt": await model.render_chat(body.conversation())}


def _piece(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}
