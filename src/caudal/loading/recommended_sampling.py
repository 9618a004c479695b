"""What a model's maker recommends for sampling, from GGUF's `general.sampling.*` keys."""

from __future__ import annotations

from typing import Any

from caudal.errors import ModelLoadError, ParameterError
from caudal.formats.model_file import ModelFile
from caudal.sampling_params import RecommendedSampling

_PREFIX = "general.sampling."
_KEYS = {
    "temperature": "temp",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "penalty_repeat",
}


def recommended_sampling(file: ModelFile) -> RecommendedSampling:
    """What the file's keys recommend.

    Raises:
        ModelLoadError: A key has a wrong type, or a value that can't be.
    """
    given: dict[str, Any] = {"top_k": file.get_int(f"{_PREFIX}top_k", None)}
    for name, key in _KEYS.items():
        value = file.get_float(_PREFIX + key, None)
        if value is not None:
            # Files have 0.95 as the float32 next to it; what was meant has few digits.
            given[name] = float(f"{value:.6g}")
    try:
        return RecommendedSampling(**given)
    except ParameterError as error:
        raise ModelLoadError(str(file.path), f"{_PREFIX}*: {error}") from error
