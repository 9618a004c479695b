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
        magnitude: Multiplies cosines and sines (YaRN's attention factor).
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
) -> RopeTable:
    """The table of a model, from its `{architecture}.rope.scaling.*` keys.

    Args:
        file: The model.
        dimensions: Rotated channels of a head.
        base: Frequency base (theta).
        interleaved: See `RopeTable`.
        scaled: Apply the file's scaling; Gemma's local layers don't.
        divisors: Per-pair divisors (the tensor `rope_freqs.weight`: Llama 3's stretching).

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
        if not all(1 / MOST <= divisor <= MOST for divisor in divisors):
            raise ModelLoadError(
                str(file.path), "rope_freqs.weight has values that aren't positive numbers"
            )
        frequencies = [f / d for f, d in zip(frequencies, divisors, strict=True)]
    kind = file.get_str(f"{prefix}.scaling.type", "none") if scaled else "none"
    if kind == "none":
        return RopeTable(tuple(frequencies), 1.0, interleaved)
    factor = positive_number(file, f"{prefix}.scaling.factor", 1.0)
    if kind == "linear":  # position interpolation, arXiv 2306.15595
        return RopeTable(tuple(f / factor for f in frequencies), 1.0, interleaved)
    if kind == "yarn":
        return _yarn(file, prefix, frequencies, dimensions, base, factor, interleaved)
    raise ModelLoadError(
        str(file.path),
        f"{prefix}.scaling.type is {kind!r}; supported are 'none', 'linear' and 'yarn'",
    )


def _yarn(
    file: ModelFile,
    prefix: str,
    frequencies: list[float],
    dimensions: int,
    base: float,
    factor: float,
    interleaved: bool,
) -> RopeTable:
    """YaRN (arXiv 2309.00071), "NTK-by-parts": slow pairs are interpolated, fast ones are kept.

    A pair that turns more than `beta_fast` times within the original context is kept, one that
    turns less than `beta_slow` times is divided by `factor`, and between them goes a linear ramp.
    """
    key = f"{prefix}.scaling.original_context_length"
    if key not in file.metadata:
        key = f"{file.architecture}.context_length"
    original = context_length(file, key)
    beta_fast = positive_number(file, f"{prefix}.scaling.yarn_beta_fast", 32.0)
    beta_slow = positive_number(file, f"{prefix}.scaling.yarn_beta_slow", 1.0)
    attention_factor = positive_number(file, f"{prefix}.scaling.attn_factor", 1.0)
    if beta_slow > beta_fast:
        raise ModelLoadError(
            str(file.path),
            f"{prefix}.scaling: yarn_beta_slow ({beta_slow}) exceeds yarn_beta_fast ({beta_fast})",
        )

    def pair_that_turns(times: float) -> float:
        return dimensions * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(beta_slow)), dimensions - 1)
    span = max(high - low, 0.001)
    stretched = []
    for pair, frequency in enumerate(frequencies):
        interpolated_share = min(max((pair - low) / span, 0.0), 1.0)
        stretched.append(
            frequency * (1 - interpolated_share) + frequency / factor * interpolated_share
        )
    magnitude = (
        attention_factor * (1.0 + 0.1 * math.log(factor)) if factor > 1 else attention_factor
    )
    return RopeTable(tuple(stretched), magnitude, interleaved)
