"""Sampling parameters under llama.cpp's names."""

from __future__ import annotations

from typing import Any

from caudal.sampling_params import SamplingParams

UNLIMITED = -1
"""llama.cpp's `n_predict` for as far as the context goes, and its `seed` for any."""

_GUESSES = {"ngram": "ngram-simple", "draft": "draft-simple", "mtp": "draft-mtp"}
"""llama.cpp's names (`--spec-type`) for what guesses tokens."""


def settings(
    params: SamplingParams, guesses: str | None, *, stream: bool = False
) -> dict[str, Any]:
    """A request's parameters, or the defaults, as llama.cpp's server says them.

    Args:
        params: The parameters.
        guesses: What guesses tokens, as `ServiceLimits.speculative` says it.
        stream: Whether the answer is sent as it grows.
    """
    limit = UNLIMITED if params.max_tokens is None else params.max_tokens
    return {
        "seed": UNLIMITED if params.seed is None else params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": params.typical_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "logit_bias": [{"bias": bias, "token": token} for token, bias in params.logit_bias.items()],
        "stop": list(params.stop),
        "ignore_eos": params.ignore_eos,
        "n_predict": limit,
        "max_tokens": limit,
        "n_probs": params.logprobs or 0,
        "speculative.types": _GUESSES.get((guesses or "").partition(":")[0], "none"),
        "stream": stream,
    }
