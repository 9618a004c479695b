"""Llama 1 to 3, Mistral, and what is saved as either (SmolLM 2, …)."""

from __future__ import annotations

from collections.abc import Mapping

from caudal.formats.huggingface.config import SILU, Config
from caudal.formats.huggingface.family import Family, Keys
from caudal.formats.huggingface.keys import decoder_keys, head_dim
from caudal.formats.huggingface.name_tables import MLP, NORMS, PERMUTED_ATTENTION
from caudal.formats.huggingface.rope_keys import llama3_divisors, rope_parameters
from caudal.formats.huggingface.rows import Rows


def _keys(config: Config) -> Keys:
    config.require("hidden_act", SILU, "silu")
    keys = decoder_keys(config)
    if "mistral" in config.model_types and "sliding_window" in config:
        keys["attention.sliding_window"] = config.positive("sliding_window")
    return keys


def made_divisors(config: Config) -> Mapping[str, Rows]:
    """What Llama 3.1's scaling of positions comes to."""
    divisors = llama3_divisors(config, rope_parameters(config), head_dim(config))
    return {} if divisors is None else {"rope_freqs.weight": divisors}


FAMILY = Family(
    model_types=("llama", "mistral"),
    architecture="llama",
    keys=_keys,
    layer={
        **PERMUTED_ATTENTION,
        **MLP,
        **NORMS,
    },
    made=made_divisors,
)
