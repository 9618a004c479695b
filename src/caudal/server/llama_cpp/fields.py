"""Fields of llama.cpp's server that no other has, wherever its clients send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

from caudal.reading.fields import RequestObject

_OFF = (0, -1)
"""llama.cpp's numbers for what is off."""


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
