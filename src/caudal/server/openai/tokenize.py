"""Texts to tokens and back, as in vLLM and in llama.cpp's server, and its `/apply-template`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter

from caudal.server.asked import Asked, asks
from caudal.server.openai.tokenize_schema import (
    AnyTokenizeRequest,
    ApplyTemplateRequest,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeContentRequest,
    TokenizeRequest,
)
from caudal.service.answers import TokenForm

router = APIRouter()


@router.post("/tokenize")
async def tokenize(
    asked: Annotated[Asked[AnyTokenizeRequest], asks(TokenizeRequest, None)],
) -> dict[str, Any]:
    """Token ids of a text or a conversation, as the routes that answer them would see it."""
    body, model = asked.body, asked.model
    if isinstance(body, TokenizeContentRequest):
        tokens = await model.tokenize(
            body.content,
            add_special=bool(body.add_special),
            parse_special=body.parse_special is not False,
            show="pieces" if body.with_pieces else None,
        )
        if body.with_pieces:
            return {"tokens": list(map(_piece, tokens.ids, tokens.pieces))}
        return {"tokens": tokens.ids}
    show: TokenForm | None = "spellings" if body.return_token_strs else None
    if isinstance(body, TokenizeChatRequest):
        special = bool(body.add_special_tokens)
        tokens = await model.tokenize_chat(body.conversation(), add_special=special, show=show)
    else:
        special = body.add_special_tokens is not False
        tokens = await model.tokenize(body.prompt, add_special=special, show=show)
    return {
        "tokens": tokens.ids,
        "token_strs": tokens.spellings if body.return_token_strs else None,
        "count": len(tokens.ids),
        "max_model_len": model.max_model_len,
    }


@router.post("/detokenize")
async def detokenize(
    asked: Annotated[Asked[DetokenizeRequest], asks(DetokenizeRequest, None)],
) -> dict[str, Any]:
    """The text of token ids, control tokens included: vLLM's `prompt`, llama.cpp's `content`."""
    text = await asked.model.detokenize(asked.body.tokens)
    return {"prompt": text, "content": text}


@router.post("/apply-template")
async def apply_template(
    asked: Annotated[Asked[ApplyTemplateRequest], asks(ApplyTemplateRequest, "generate")],
) -> dict[str, Any]:
    """The prompt that a conversation becomes, as text."""
    return {"prompt": await asked.model.render(asked.body.conversation())}


def _piece(token: int, data: bytes) -> dict[str, Any]:
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}
