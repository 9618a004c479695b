"""The field that names an adapter beside `model`: by its name, or as llama.cpp's clients do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.service.info import AdapterInfo
from caudal.service.service import Service


class AdapterScale(RequestObject):
    """How much of an adapter is wanted."""

    id: int
    scale: float


AdapterScales = Annotated[list[AdapterScale], Field(max_length=1024)]
"""llama.cpp's list; far more than anybody has adapters."""


class AdapterField(RequestObject):
    """What all bodies that ask for work have of it."""

    lora: str | AdapterScales | None = Field(
        None,
        description="The adapter to answer with: its name, or llama.cpp's list, in which one has a "
        "scale of 1 and others have 0.",
    )

    def adapter(self, model: Service) -> AdapterInfo | None:
        """The adapter that `lora` names; see `ModelRequestBody.adapter`."""
        if not self.lora:
            return None
        by_number = {each.number: each for each in model.adapters}
        if isinstance(self.lora, str):
            for each in by_number.values():
                if each.name == self.lora:
                    return each
            raise _unknown(repr(self.lora[:80]), by_number)
        for scale in self.lora:
            if scale.id not in by_number:
                raise _unknown(str(scale.id), by_number)
            if scale.scale not in (0, 1):
                raise ParameterError(
                    "lora",
                    f"lora: an adapter's scale must be 0 or 1, but is {scale.scale}. How strong an "
                    "adapter is, its own file says (alpha).",
                )
        wanted = {scale.id for scale in self.lora if scale.scale}
        if len(wanted) > 1:
            raise ParameterError("lora", "lora: a request has one adapter at most.")
        return by_number[wanted.pop()] if wanted else None


def _unknown(what: str, by_number: Mapping[int, AdapterInfo]) -> ParameterError:
    known = ", ".join(f"{number} ({each.name})" for number, each in by_number.items())
    return ParameterError(
        "lora", f"lora: there is no adapter {what}; there are: {known or 'none'}."
    )
