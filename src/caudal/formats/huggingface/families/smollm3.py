"""SmolLM3."""

from __future__ import annotations

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, refuse_windows
from caudal.formats.huggingface.name_tables import MLP, NORMS, PERMUTED_ATTENTION

_UNROTATED_EVERY = 4


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    refuse_windows(config)
    keys = decoder_keys(config)
    rotated = config.get("no_rope_layers", list, [])  # 1 for a layer that is rotated
    if any(bool(on) != bool((layer + 1) % _UNROTATED_EVERY) for layer, on in enumerate(rotated)):
        raise config.error("no_rope_layers isn't one layer without RoPE in four")
    config.require("no_rope_layer_interval", (_UNROTATED_EVERY,), _UNROTATED_EVERY)
    return keys


FAMILY = Family(
    model_types=("smollm3",),
    architecture="smollm3",
    keys=_keys,
    layer={
        **PERMUTED_ATTENTION,
        **MLP,
        **NORMS,
    },
    tied=True,
)
