"""How config.json has its rotary positions stretched, as GGUF's keys and tensors.

Transformers 5 writes `rope_parameters`, an object for all layers or one for each kind of layer;
before, there were `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.rows import Floats, Rows, made_of_floats
from caudal.formats.model_folder import JsonObject

FULL, SLIDING = "full_attention", "sliding_attention"
_DEFAULT_BASE = 10000.0
_NOT_TURNED = 1e30
_DIVISORS = "rope_freqs.weight"
_DIVIDED = ("llama3", "proportional")
"""What is in those divisors, and in no key."""


def rope_parameters(config: Config, layers: str = FULL) -> JsonObject:
    """The parameters of one kind of layers, in the newer form.

    Raises:
        ModelLoadError: They have types that they can't have.
    """
    parameters = config.part("rope_parameters")
    if FULL in parameters or SLIDING in parameters:
        inner = parameters.get(layers, dict, {})
        return JsonObject(f"{parameters.source}.{layers}", inner)
    if parameters.content:
        return parameters
    scaling = config.part("rope_scaling")
    kind = scaling.get("rope_type", str, scaling.get("type", str, "default"))
    base = config.get("rope_theta", float, _DEFAULT_BASE)
    return JsonObject(scaling.source, {"rope_theta": base, **scaling.content, "rope_type": kind})


def rope_keys(
    config: Config, rope: JsonObject, *, prefix: str = "rope", yarn_truncates: bool = True
) -> dict[str, MetadataValue]:
    """The keys below `{architecture}.` of a base and its scaling.

    Args:
        config: The configuration.
        rope: Its parameters.
        prefix: What keys begin with.
        yarn_truncates: Whether the family has YaRN's ramp begin and end at whole pairs.

    Raises:
        ModelLoadError: The scaling is of a type that isn't computed; names it.
    """
    keys: dict[str, MetadataValue] = {
        f"{prefix}.freq_base": rope.get("rope_theta", float, _DEFAULT_BASE)
    }
    kind = rope.get("rope_type", str, "default")
    # Of text, all positions of multimodal RoPE are the same: then it is the plain one.
    if kind in ("default", "mrope", *_DIVIDED):
        return keys
    if kind == "linear":
        return keys | {
            f"{prefix}.scaling.type": "linear",
            f"{prefix}.scaling.factor": rope.get("factor", float),
        }
    if kind == "yarn":
        return keys | _yarn_keys(config, rope, f"{prefix}.scaling", yarn_truncates)
    if kind in ("longrope", "su"):
        return keys | _longrope_keys(config, rope, f"{prefix}.scaling")
    raise ModelLoadError(
        rope.source,
        f"rope_type is {kind!r}; supported are 'default', 'linear', 'llama3', 'longrope', "
        "'proportional' and 'yarn'",
    )


def check_divided(config: Config, tensors: Iterable[str]) -> None:
    """Refuse what divisors would have to say, where a family makes none.

    Raises:
        ModelLoadError: The configuration stretches positions in a way that got lost.
    """
    kind = rope_parameters(config).get("rope_type", str, "default")
    if kind in _DIVIDED and _DIVISORS not in tensors:
        raise config.error(f"rope_type is {kind!r}, which isn't supported for this model_type")


def llama3_divisors(config: Config, rope: JsonObject, dimensions: int) -> Rows | None:
    """The tensor `rope_freqs.weight` of Llama 3.1's scaling; None where there is none.

    Pairs of long wavelengths are slowed down by `factor`, those of short ones are left as they are,
    and between both the divisor goes smoothly over.

    Raises:
        ModelLoadError: A parameter is missing, or makes no sense.
    """
    if rope.get("rope_type", str, "default") != "llama3":
        return None
    factor = rope.get("factor", float)
    low, high = rope.get("low_freq_factor", float), rope.get("high_freq_factor", float)
    original = rope.positive("original_max_position_embeddings")
    base = rope.get("rope_theta", float, _DEFAULT_BASE)
    if not (factor > 0 and 0 < low < high and base > 1):
        raise ModelLoadError(
            rope.source,
            f"factor {factor}, low_freq_factor {low}, high_freq_factor {high} and rope_theta "
            f"{base} make no sense together",
        )

    def divisors() -> Floats:
        exponents = np.arange(0, dimensions, 2) / dimensions
        wavelengths = 2 * math.pi * np.power(base, exponents)
        smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
        return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)

    return made_of_floats(_DIVISORS, (dimensions // 2,), divisors)


def proportional_divisors(rope: JsonObject, dimensions: int) -> Rows:
    """The tensor `rope_freqs.weight` of heads of which a share of the pairs turns, the fastest.

    The others' divisors are huge, as converters have them; all pairs turn where no share is given.

    Raises:
        ModelLoadError: The share isn't one, or the factor isn't positive.
    """
    is_proportional = rope.get("rope_type", str, "default") == "proportional"
    share = rope.get("partial_rotary_factor", float, 1.0) if is_proportional else 1.0
    factor = rope.get("factor", float, 1.0) if is_proportional else 1.0
    if not (0 <= share <= 1 and 0 < factor < math.inf):
        raise ModelLoadError(
            rope.source, f"partial_rotary_factor {share} and factor {factor} make no sense"
        )
    pairs = dimensions // 2
    values = np.full(pairs, _NOT_TURNED, np.float32)
    values[: int(share * dimensions // 2)] = factor
    return made_of_floats(_DIVISORS, (pairs,), values.copy)


def longrope_factors(rope: JsonObject, dimensions: int) -> dict[str, Rows]:
    """The tensors with LongRoPE's divisors (arXiv 2402.13753); none where it isn't used.

    Raises:
        ModelLoadError: They are missing, or aren't one number for each pair of channels.
    """
    if rope.get("rope_type", str, "default") not in ("longrope", "su"):
        return {}
    result = {}
    for length in ("long", "short"):
        factors = rope.get(f"{length}_factor", list)
        if len(factors) != dimensions // 2 or not all(
            isinstance(factor, int | float) and 0 < factor < math.inf for factor in factors
        ):
            raise ModelLoadError(
                rope.source, f"{length}_factor isn't {dimensions // 2} positive numbers"
            )
        values = np.array(factors, np.float32)
        name = f"rope_factors_{length}.weight"
        result[name] = made_of_floats(name, values.shape, values.copy)
    return result


def _longrope_keys(config: Config, rope: JsonObject, prefix: str) -> dict[str, MetadataValue]:
    """What multiplies cosines and sines grows with the root of the stretched length's logarithm."""
    longest = config.positive("max_position_embeddings")
    # Older files have it outside.
    outside = config.positive("original_max_position_embeddings", longest)
    original = rope.positive("original_max_position_embeddings", outside)
    factor = longest / original
    own = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return {
        f"{prefix}.original_context_length": original,
        f"{prefix}.attn_factor": rope.get("attention_factor", float, own),
    }


def _yarn_keys(
    config: Config, rope: JsonObject, prefix: str, truncates: bool
) -> dict[str, MetadataValue]:
    factor = rope.get("factor", float)
    keys: dict[str, MetadataValue] = {
        f"{prefix}.type": "yarn",
        f"{prefix}.factor": factor,
        f"{prefix}.original_context_length": rope.positive(
            "original_max_position_embeddings", config.positive("max_position_embeddings")
        ),
    }
    for key in ("beta_fast", "beta_slow"):
        if key in rope:
            keys[f"{prefix}.yarn_{key}"] = rope.get(key, float)
    # GGUF's factor multiplies YaRN's own instead of standing for it.
    own, wanted = _yarn_growth(factor, 1.0), _yarn_magnitude(rope)
    if wanted != own:
        keys[f"{prefix}.attn_factor"] = wanted / own
    # GGUF has no key for it: programs know what is their family's.
    truncate = rope.get("truncate", bool, True)
    if truncate != truncates:
        raise ModelLoadError(
            rope.source, f"truncate is {str(truncate).lower()}, which this family doesn't support"
        )
    return keys


def yarn_multiplier_keys(rope: JsonObject, *, of_rotated: float | None) -> dict[str, MetadataValue]:
    """YaRN's magnitude where files have that of all channels apart; to be added to `rope_keys`.

    Args:
        rope: The parameters.
        of_rotated: How fast programs have the magnitude of rotated channels grow; None: as fast as
            that of all, if that grows.

    Raises:
        ModelLoadError: They have types that they can't have.
    """
    if rope.get("rope_type", str, "default") != "yarn":
        return {}
    factor, of_all = rope.get("factor", float), rope.get("mscale_all_dim", float, 0.0)
    if of_rotated is None:
        of_rotated = of_all if of_all > 0 else 1.0
    own = _yarn_growth(factor, of_rotated) / _yarn_growth(factor, of_all)
    return {
        "rope.scaling.yarn_log_multiplier": of_all,
        "rope.scaling.attn_factor": _yarn_magnitude(rope) / own,
    }


def _yarn_magnitude(rope: JsonObject) -> float:
    """What multiplies cosines and sines."""
    factor = rope.get("factor", float)
    of_rotated, of_all = (rope.get(key, float, 0.0) for key in ("mscale", "mscale_all_dim"))
    default = _yarn_growth(factor, 1.0)
    if of_rotated and of_all:
        default = _yarn_growth(factor, of_rotated) / _yarn_growth(factor, of_all)
    return rope.get("attention_factor", float, default)


def _yarn_growth(factor: float, multiplier: float) -> float:
    return 1 + 0.1 * multiplier * math.log(factor) if factor > 1 else 1.0
