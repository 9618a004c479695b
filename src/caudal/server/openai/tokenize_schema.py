"""What `/tokenize`, `/detokenize` and `/apply-template` accept: vLLM's forms and llama.cpp's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from caudal.server.openai.chat_schema import ChatFields
from caudal.server.request_bodies import ModelRequestBody
from caudal.service.naming import FieldNames


class TokenizeTextRequest(ModelRequestBody):
    """Body of `POST /tokenize`, for text."""

    prompt: str
    add_special_tokens: bool | None = Field(None, description="True by default.")
    return_token_strs: bool | None = Field(
        None, description="The answer has the tokens as the vocabulary spells them, too."
    )


class TokenizeChatRequest(ChatFields):
    """Body of `POST /tokenize`, for a conversation."""

    add_special_tokens: bool | None = Field(
        None,
        description="Add what begins and ends texts to what the template writes, which usually "
        "has it.",
    )
    return_token_strs: bool | None = None


class TokenizeContentRequest(ModelRequestBody):
    """Body of `POST /tokenize` as llama.cpp's clients send it."""

    content: str
    add_special: bool | None = None
    parse_special: bool | None = Field(
        None, description="Control tokens written in the text become those tokens, by default."
    )
    with_pieces: bool | None = Field(
        None, description="Each token comes with its text, or its bytes."
    )

    def field_names(self) -> FieldNames:
        """The text goes by llama.cpp's name."""
        return FieldNames({"prompt": "content"})


def _kind(body: Any) -> str:
    if isinstance(body, dict):
        if "messages" in body:
            return "[chat]"
        if "content" in body and "prompt" not in body:
            return "[content]"
    return "[text]"


AnyTokenizeRequest = TokenizeTextRequest | TokenizeChatRequest | TokenizeContentRequest

# The brackets keep the tags out of error messages, like the other names of unions' branches.
TokenizeRequest = Annotated[
    Annotated[TokenizeTextRequest, Tag("[text]")]
    | Annotated[TokenizeChatRequest, Tag("[chat]")]
    | Annotated[TokenizeContentRequest, Tag("[content]")],
    Discriminator(_kind),
]


class DetokenizeRequest(ModelRequestBody):
    """Body of `POST /detokenize`."""

    tokens: list[int]


class ApplyTemplateRequest(ChatFields):
    """Body of `POST /apply-template`."""
