"""What the sampler should do, written plainly in float64: sort everything, then filter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def by_score(scores: Floats) -> NDArray[np.intp]:
    """Tokens by descending score, equal ones by ascending id."""
    return np.lexsort((np.arange(len(scores)), -scores))


def normalised(probabilities: Floats) -> Floats:
    return np.asarray(probabilities / probabilities.sum())


def prefix(probabilities: Floats, order: NDArray[np.intp], mass: float) -> Floats:
    """Keep the shortest prefix of `order` whose probability reaches `mass`."""
    reached = np.searchsorted(np.cumsum(probabilities[order]), mass)
    kept = np.zeros_like(probabilities)
    chosen = order[: reached + 1]
    kept[chosen] = probabilities[chosen]
    return normalised(kept)


def processed_logits(
    logits: NDArray[np.float32],
    *,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    prompt_tokens: Sequence[int] = (),
    output_tokens: Sequence[int] = (),
    logit_bias: Sequence[tuple[int, float]] = (),
    banned_tokens: Sequence[int] = (),
    allowed_mask: bytes = b"",
) -> Floats:
    """Logits after everything that comes before temperature."""
    out = np.asarray(logits, dtype=np.float64).copy()
    if allowed_mask:
        allowed = np.unpackbits(np.frombuffer(allowed_mask, np.uint8), bitorder="little")
        for token in range(len(out)):
            if token >= len(allowed) or not allowed[token]:
                out[token] = -np.inf
    out[list(banned_tokens)] = -np.inf
    for token, bias in logit_bias:
        out[token] += bias
    for token in {*prompt_tokens, *output_tokens}:
        if out[token] > 0:
            out[token] /= repetition_penalty
        else:
            out[token] *= repetition_penalty
    for token in set(output_tokens):
        count = list(output_tokens).count(token)
        out[token] -= presence_penalty + frequency_penalty * count
    return out


def distribution(
    processed: Floats,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> Floats:
    """Probability of every token of being drawn."""
    with np.errstate(divide="ignore", invalid="ignore"):
        probabilities = normalised(np.exp((processed - processed.max()) / temperature))
        kept = np.where(probabilities >= min_p * probabilities.max(), probabilities, 0.0)
        kept = normalised(kept)
        if top_k > 0:
            kept[by_score(np.where(kept > 0, processed, -np.inf))[top_k:]] = 0.0
            kept = normalised(kept)
        if typical_p < 1.0:
            surprise = -np.log(kept)
            entropy = float(np.sum(np.where(kept > 0, kept * surprise, 0.0)))
            kept = prefix(kept, by_score(-np.abs(surprise - entropy)), typical_p)
        if top_p < 1.0:
            kept = prefix(kept, by_score(np.where(kept > 0, processed, -np.inf)), top_p)
    return kept


def drawn_token(
    probabilities: Floats, processed: Floats, uniform: float, *, filtered: bool
) -> set[int]:
    """Tokens that inverse-CDF sampling may return.

    Usually one; two where the random number is so near to a boundary that rounding decides.
    """
    order = by_score(processed) if filtered else np.arange(len(processed))
    order = order[probabilities[order] > 0]
    cumulative = np.cumsum(probabilities[order])
    slack = 2e-6
    positions = np.searchsorted(cumulative, [uniform - slack, uniform, uniform + slack])
    return {int(order[min(position, len(order) - 1)]) for position in positions}
