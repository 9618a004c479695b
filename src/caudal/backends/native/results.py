"""What the native library returns, as results of steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caudal import _native
from caudal.backends.executor import SampledToken, SequenceStep, StepResult, TokenLogprob


def _sampled(token: int, score: _native.ScoreTuple | None) -> SampledToken:
    return SampledToken(token, None if score is None else _token_logprob(score))


def drawn(token: int, score: _native.ScoreTuple | None, error: str | None) -> StepResult:
    """What nearly all steps come to, a single token, without the loops of the others."""
    return StepResult([_sampled(token, score)]) if error is None else StepResult(error=error)


def step_result(
    step: SequenceStep,
    samples: Sequence[_native.SampleTuple],
    scores: Sequence[_native.ScoredTuple],
    pooled: NDArray[np.float64] | None,
) -> StepResult:
    """What a step of any kind comes to.

    Args:
        step: What was asked.
        samples: The tokens drawn, also those that don't count.
        scores: Of each of its targets.
        pooled: The sum of its states, where that was asked for.
    """
    samples = _accepted(step, samples)
    for *_, error in samples:
        if error is not None:
            return StepResult(error=error)
    for _, error in scores:
        if error is not None:
            return StepResult(error=error)
    return StepResult(
        samples=[_sampled(token, score) for token, score, _ in samples],
        scores=[_token_logprob(score) for score, _ in scores if score is not None],
        pooled=pooled,
    )


def _accepted(
    step: SequenceStep, samples: Sequence[_native.SampleTuple]
) -> Sequence[_native.SampleTuple]:
    """Those of the tokens drawn that count; see `StepResult`."""
    if not step.proposed:
        return samples
    proposals = [*step.tokens[-step.proposed :], None]
    for place, ((token, _, error), proposal) in enumerate(zip(samples, proposals, strict=True)):
        if error is not None:
            return samples[: max(place, 1)]
        if token != proposal:
            return samples[: place + 1]
    raise AssertionError("the last token drawn has no proposal to be equal to")


def _token_logprob(score: _native.ScoreTuple) -> TokenLogprob:
    token, logprob, rank, top = score
    return TokenLogprob(token, logprob, rank, top)
