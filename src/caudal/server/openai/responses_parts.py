"""What messages, and what tools have put out, consist of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Tag, model_validator

from caudal.reading.blocks import (
    BY_TYPE,
    OTHER,
    known_or_other,
    known_types,
    typed,
)
from caudal.reading.fields import RequestObject
from caudal.reading.openai.messages import RefusalPart


class InputTextPart(RequestObject):
    """Text for the model."""

    hints = frozenset({"prompt_cache_breakpoint"})

    type: Literal["input_text"]
    text: str


class OutputTextPart(RequestObject):
    """Text that the model wrote."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = Field(
        default_factory=list, description="As they came; the model can't see them."
    )
    logprobs: list[Any] | None = Field(None, description="As they came; the model can't see them.")


MessagePart = Annotated[
    Annotated[InputTextPart, Tag("[input_text]")]
    | Annotated[OutputTextPart, Tag("[output_text]")]
    | Annotated[RefusalPart, Tag("[refusal]")],
    BY_TYPE,
    known_types("a content part", ("input_text", "output_text", "refusal")),
]


_MEDIA = {"input_image": "An image", "input_file": "A file", "input_audio": "Audio"}


class MediaPart(BaseModel):
    """Something that isn't text in a tool's output: the model is told that it was there."""

    type: str
    given: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _keep(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {"type": data["type"], "given": data}

    @property
    def text(self) -> str:
        """What the model reads in its place."""
        what = _MEDIA.get(self.type, "Something")
        return f"[{what} was left out here: only text can be read.]"


_OUTPUT_TYPES = ("input_text", "output_text")

OutputPart = Annotated[
    Annotated[InputTextPart, Tag("[input_text]")]
    | Annotated[OutputTextPart, Tag("[output_text]")]
    | Annotated[MediaPart, Tag(OTHER)],
    known_or_other(_OUTPUT_TYPES),
    typed("a part of a tool's output", _OUTPUT_TYPES, tuple(_MEDIA)),
]
