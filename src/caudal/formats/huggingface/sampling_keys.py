"""What `generation_config.json` recommends for sampling, under GGUF's keys."""

from __future__ import annotations

from collections.abc import Mapping

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.model_folder import GENERATION_CONFIG, ModelFolder

_PREFIX = "general.sampling."
_FLOATS = {
    "temperature": "temp",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "penalty_repeat",
}
_TOP_K = "top_k"


def sampling_keys(folder: ModelFolder) -> Mapping[str, MetadataValue]:
    """The keys of what is recommended. As in vLLM, `do_sample` makes no difference.

    Raises:
        ModelLoadError: The file is damaged, or a value has a wrong type.
    """
    if GENERATION_CONFIG not in folder:
        return {}
    settings = folder.read_object(GENERATION_CONFIG)
    keys: dict[str, MetadataValue] = {
        _PREFIX + key: settings.get(name, float)
        for name, key in _FLOATS.items()
        if name in settings
    }
    if _TOP_K in settings:
        keys[_PREFIX + _TOP_K] = settings.get(_TOP_K, int)
    return keys
