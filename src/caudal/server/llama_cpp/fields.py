"""Fields of llama.cpp's server that no other has, wherever its clients send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, ClassVar

from pydantic import Field

from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.service.info import AdapterInfo
from caudal.service.service import Service

_OFF = (0, -1)
"""llama.cpp's numbers for what is off."""


MAX_SCALES = 1024
"""Most adapters that a request says something of."""


class AdapterScale(RequestObject):
    """How much of an adapter is wanted."""

    id: int
    scale: float


class LlamaCppFields(RequestObject):
    """Ways to sample that aren't offered, and hints about slots, figures and samplers."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "adaptive_target": _OFF,
        "dry_multiplier": (0,),
        "dynatemp_range": (0,),
        "mirostat": (0,),
        "n_indent": (0,),
        "post_sampling_probs": (False,),
        "t_max_predict_ms": _OFF,
        "top_n_sigma": _OFF,
        "xtc_probability": (0,),
    }
    hints: ClassVar[AbstractSet[str] | Mapping[str, Sequence[Any]]] = frozenset(
        (
            "adaptive_decay",
            "backend_sampling",
            "cache_prompt",
            "dry_allowed_length",
            "dry_base",
            "dry_penalty_last_n",
            "dry_sequence_breakers",
            "dynatemp_exponent",
            "id_slot",
            "min_keep",
            "mirostat_eta",
            "mirostat_tau",
            "n_cache_reuse",
            "n_discard",
            "n_keep",
            "repeat_last_n",
            "return_progress",
            "samplers",
            "sse_ping_interval",
            "timings_per_token",
            "xtc_threshold",
        )
    )

    lora: str | Annotated[list[AdapterScale], Field(max_length=MAX_SCALES)] | None = Field(
        None,
        description="The adapter to answer with: its name, or llama.cpp's list, in which one has a "
        "scale of 1 and others have 0.",
    )

    def adapter(self, model: Service) -> AdapterInfo | None:
        """The adapter that `lora` names; see `ModelRequestBody.adapter`."""
        if not self.lora:
            return None
        there = model.adapters
        if isinstance(self.lora, str):
            found = [each for each in there if each.name == self.lora]
            if not found:
                raise ParameterError("lora", f"lora: there is no adapter {self.lora[:80]!r}.")
            return found[0]
        by_number = {each.number: each for each in there}
        for each in self.lora:
            if each.id not in by_number:
                known = ", ".join(f"{number} ({by_number[number].name})" for number in by_number)
                raise ParameterError(
                    "lora", f"lora: there is no adapter {each.id}; there are: {known or 'none'}."
                )
            if each.scale not in (0, 1):
                raise ParameterError(
                    "lora", f"lora: an adapter's scale must be 0 or 1, but is {each.scale}."
                )
        wanted = dict.fromkeys(each.id for each in self.lora if each.scale)
        if len(wanted) > 1:
            raise ParameterError("lora", "lora: a request has one adapter at most.")
        return by_number[next(iter(wanted))] if wanted else None
