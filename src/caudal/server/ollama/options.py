"""`options`: how an answer is drawn and how long it may be, under Ollama's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from caudal.reading.fields import RequestObject
from caudal.sampling_params import RecommendedSampling, SamplingParams

_KINDS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "draft_num_predict",
            "main_gpu",
            "mirostat",
            "num_batch",
            "num_ctx",
            "num_gpu",
            "num_keep",
            "num_predict",
            "num_thread",
            "repeat_last_n",
            "seed",
            "top_k",
        ),
        "integer",
    ),
    **dict.fromkeys(
        (
            "frequency_penalty",
            "min_p",
            "presence_penalty",
            "repeat_penalty",
            "temperature",
            "top_p",
            "typical_p",
        ),
        "float32",
    ),
    "stop": "array",
    "use_mmap": "boolean",
}
"""What Ollama calls the type of an option that it documents."""

DEFAULTS: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""What holds in Ollama where neither a request nor the model says anything, by our names. Its other
defaults are ours too.
"""

_NAMES: Mapping[str, str] = {
    "frequency_penalty": "frequency_penalty",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repetition_penalty",
    "stop": "stop",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "typical_p": "typical_p",
}
"""Ours of the options that go as they are."""

_PENALTIES: Mapping[str, float] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Those that repetition brings, with the values that ask for none."""

FIELD_NAMES: Mapping[str, str] = {
    **{ours: f"options.{theirs}" for theirs, ours in _NAMES.items()},
    "context_length": "options.num_ctx",
    "max_tokens": "options.num_predict",
    "seed": "options.seed",
}
"""What Ollama calls what errors blame."""


class Options(RequestObject):
    """Ollama's options. What says how its server is to be run only hints at it here."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {"mirostat": (0,)}
    hints: ClassVar[Mapping[str, Sequence[Any]]] = {
        "draft_num_predict": (0, 4),
        "embedding_only": (False,),
        "f16_kv": (True,),
        "logits_all": (False,),
        "low_vram": (False,),
        "main_gpu": (0,),
        "mirostat_eta": (),
        "mirostat_tau": (),
        "num_batch": (512,),
        "num_gpu": (-1,),
        "num_keep": (4,),
        "num_thread": (0,),
        "numa": (False,),
        "penalize_newline": (True,),
        "tfs_z": (1,),
        "use_mlock": (False,),
        "use_mmap": (),
        "vocab_only": (False,),
    }

    num_ctx: int | None = Field(
        None,
        description="Most tokens of prompt and answer together; by default, and at most, as many "
        "as the model has room for.",
    )
    num_predict: int | None = Field(
        None, description="Most tokens of the answer; below 0, the default, as the context goes."
    )
    seed: int | None = Field(None, description="Makes sampling repeatable; -1 draws one.")
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_last_n: int | None = Field(
        None, description="0 turns penalties off; else they look at all tokens, as -1 asks."
    )
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_kinds(cls, data: Any) -> Any:
        """Raises `ValueError` for a wrong type, in Ollama's words; whole numbers may have a point.

        A client may go on to show these to whoever wrote the options.
        """
        if not isinstance(data, dict):
            return data
        return {name: _checked(name, value) for name, value in data.items()}

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and answer; None for as many as there is room for."""
        return self.num_ctx if self.num_ctx is not None and self.num_ctx > 0 else None

    def sampling(self, recommended: RecommendedSampling) -> dict[str, Any]:
        """Arguments of `SamplingParams`.

        Args:
            recommended: What the model, or the package that it is in, says of itself. It comes
                before Ollama's defaults, whose library has these very values in its packages.
        """
        given = {
            ours: value
            for theirs, ours in _NAMES.items()
            if (value := getattr(self, theirs)) is not None
        }
        if self.num_predict is not None:
            given["max_tokens"] = self.num_predict if self.num_predict >= 0 else None
        if self.seed is not None:
            given["seed"] = None if self.seed == -1 else self.seed
        if self.repeat_last_n == 0:
            given |= _PENALTIES
        return {"max_tokens": None, **DEFAULTS, **recommended.values(), **given}

    def without_effect(self, params: SamplingParams, max_model_len: int) -> list[str]:
        """Options that nothing here goes by, as they are.

        Args:
            params: What comes of them.
            max_model_len: Most tokens for which the model has room.
        """
        names = []
        if self.repeat_last_n is not None and self.repeat_last_n > 0:
            penalised = any(getattr(params, name) != none for name, none in _PENALTIES.items())
            names += ["options.repeat_last_n"] if penalised else []
        if (self.context_length or 0) > max_model_len:
            names.append("options.num_ctx")
        return names


def _checked(name: str, value: Any) -> Any:
    kind = _KINDS.get(name)
    if value is None or kind is None:
        return value
    if kind == "integer":
        if isinstance(value, float) and value.is_integer():
            return int(value)
        right = type(value) is int
    elif kind == "float32":
        right = type(value) in (int, float)
    elif kind == "boolean":
        right = type(value) is bool
    else:
        right = isinstance(value, list)
        if right and not all(isinstance(item, str) for item in value):
            raise ValueError(f'option "{name}" must be of an array of strings')
    if not right:
        raise ValueError(f'option "{name}" must be of type {kind}')
    return value
