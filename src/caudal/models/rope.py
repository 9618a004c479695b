"""Rotary position embedding (RoPE, arXiv 2104.09864) and the ways its frequencies are stretched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models.hyperparameters import MOST, context_length, positive_number


@dataclass(frozen=True, slots=True)
class RopeTable:
    """How heads are rotated: channel pair i turns by position · inverse_frequencies[i].

    Attributes:
        inverse_frequencies: Radians per position of each pair; two channels of a head each.
        magnitude: Multiplies cosines and sines (the attention factor of YaRN and LongRoPE).
        interleaved: Pairs are channels (2i, 2i + 1); otherwise (i, i + pairs).
    """

    inverse_frequencies: tuple[float, ...]
    magnitude: float
    interleaved: bool


def plain_frequencies(dimensions: int, base: float) -> list[float]:
    """base^(-2i / dimensions) for each of the dimensions / 2 pairs."""
    return [base ** (-2.0 * i / dimensions) for i in range(dimensions // 2)]


def rope_table(
    file: ModelFile,
    *,
    dimensions: int,
    base: float,
    interleaved: bool,
    scaled: bool = True,
    divisors: Sequence[float] | None = None,
    truncated: bool = True,
) -> RopeTable:
    """The table of a model, from its `{architecture}.rope.scaling.*` keys.

    Args:
        file: The model.
        dimensions: Rotated channels of a head.
        base: Frequency base (theta).
        interleaved: See `RopeTable`.
        scaled: Apply the file's scaling; Gemma's local layers don't.
        divisors: Per-pair divisors: Llama 3's stretching, or those that `long_rope_factors` names.
        truncated: YaRN's ramp begins and ends at whole pairs, as nearly always.

    Raises:
        ModelLoadError: The scaling is of an unknown type or its numbers make no sense.
    """
    prefix = f"{file.architecture}.rope"
    if dimensions <= 0 or dimensions % 2 != 0 or not 1 < base <= MOST:
        raise ModelLoadError(
            str(file.path),
            f"{prefix}: cannot rotate {dimensions} channels with base {base}; it takes an even "
            f"number of channels, and a base above 1 and up to {MOST:.0e}",
        )
    frequencies = plain_frequencies(dimensions, base)
    if divisors is not None:
        # Pairs that don't turn have huge ones.
        if not all(1 / MOST <= divisor < math.inf for divisor in divisors):
            raise ModelLoadError(
                str(file.path), "the rope's divisors have values that aren't positive numbers"
            )
        frequencies = [f / d for f, d in zip(frequencies, divisors, strict=True)]
    kind = file.get_str(f"{prefix}.scaling.type", "none") if scaled else "none"
    magnitude = positive_number(file, f"{prefix}.scaling.attn_factor", 1.0) if scaled else 1.0
    # LongRoPE is in the divisors and the magnitude; converters don't always write the type.
    if kind in ("none", "longrope"):
        return RopeTable(tuple(frequencies), magnitude, interleaved)
    factor = _scaling_factor(file)
    if kind == "linear":  # position interpolation, arXiv 2306.15595
        return RopeTable(tuple(f / factor for f in frequencies), magnitude, interleaved)
    if kind == "yarn":
        stretched = _stretched_by_yarn(file, frequencies, dimensions, base, factor, truncated)
        magnitude *= _yarn_magnitude(file, factor)
        return RopeTable(tuple(stretched), magnitude, interleaved)
    raise ModelLoadError(
        str(file.path),
        f"{prefix}.scaling.type is {kind!r}; supported are 'none', 'linear', 'yarn' and 'longrope'",
    )


def long_rope_factors(file: ModelFile, served_length: int) -> str:
    """The tensor with the divisors of a model that has two sets (LongRoPE, arXiv 2402.13753).

    One is for sequences up to the length that the model was trained for at first, one for longer
    ones. As what is kept of a token was computed with one of them, and may be read by sequences
    of any length, the longest sequence that may be served decides, for all.

    Args:
        file: The model.
        served_length: Most tokens of a sequence.

    Raises:
        ModelLoadError: The model doesn't say its original length.
    """
    original = context_length(file, f"{file.architecture}.rope.scaling.original_context_length")
    return f"rope_factors_{'long' if served_length > original else 'short'}.weight"


def yarn_scores(file: ModelFile) -> float:
    """What multiplies the scores of DeepSeek's attention where YaRN stretches it; 1 if it doesn't.

    Its magnitude is for all channels of a head then, not for the rotated ones alone.
    """
    kind = file.get_str(f"{file.architecture}.rope.scaling.type", "none")
    return _magnitude(_scaling_factor(file), _multiplier(file)) ** 2 if kind == "yarn" else 1.0


def _scaling_factor(file: ModelFile) -> float:
    return positive_number(file, f"{file.architecture}.rope.scaling.factor", 1.0)


def _magnitude(factor: float, multiplier: float) -> float:
    return 1.0 + 0.1 * multiplier * math.log(factor) if factor > 1 else 1.0


def _multiplier(file: ModelFile) -> float:
    """How fast the magnitude for all channels grows (`mscale_all_dim`); 0 where there is none."""
    key = f"{file.architecture}.rope.scaling.yarn_log_multiplier"
    value = file.get_float(key, 0.0)
    if not 0 <= value <= MOST:
        raise ModelLoadError(str(file.path), f"{key} must be from 0 to {MOST:.0e}, but is {value}")
    # DeepSeek's converter writes a tenth of it, Mistral's all.
    return 10 * value if file.architecture == "deepseek2" else value


def _yarn_magnitude(file: ModelFile, factor: float) -> float:
    """Of the rotated channels: what they have beyond the magnitude of all, which is in the scores.

    Files don't say how fast that of the rotated ones grows (`mscale`): with DeepSeek as fast as
    the other, so that nothing is left, and else by 1.
    """
    multiplier = _multiplier(file)
    rotated = multiplier if file.architecture == "deepseek2" and multiplier > 0 else 1.0
    return _magnitude(factor, rotated) / _magnitude(factor, multiplier)


def _stretched_by_yarn(
    file: ModelFile,
    frequencies: list[float],
    dimensions: int,
    base: float,
    factor: float,
    truncated: bool,
) -> list[float]:
    """YaRN (arXiv 2309.00071), "NTK-by-parts": slow pairs are interpolated, fast ones are kept.

    A pair that turns more than `beta_fast` times within the original context is kept, one that
    turns less than `beta_slow` times is divided by `factor`, and between them goes a linear ramp.
    """
    prefix = f"{file.architecture}.rope"
    key = f"{prefix}.scaling.original_context_length"
    if key not in file.metadata:
        key = f"{file.architecture}.context_length"
    original = context_length(file, key)
    beta_fast = positive_number(file, f"{prefix}.scaling.yarn_beta_fast", 32.0)
    beta_slow = positive_number(file, f"{prefix}.scaling.yarn_beta_slow", 1.0)
    if beta_slow > beta_fast:
        raise ModelLoadError(
            str(file.path),
            f"{prefix}.scaling: yarn_beta_slow ({beta_slow}) exceeds yarn_beta_fast ({beta_fast})",
        )

    def pair_that_turns(times: float) -> float:
        return dimensions * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dimensions - 1)
    span = max(high - low, 0.001)
    stretched = []
    for pair, frequency in enumerate(frequencies):
        interpolated_share = min(max((pair - low) / span, 0.0), 1.0)
        stretched.append(
            frequency * (1 - interpolated_share) + frequency / factor * interpolated_share
        )
    return stretched
