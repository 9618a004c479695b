"""What a request may ask for, whatever the model has room for: `RequestContext` says it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from caudal.errors import OverLimitError, PromptLimitError
from caudal.sampling_params import SamplingParams
from caudal.service.context import RequestContext


def check_prompts(context: RequestContext, tokens: Iterable[int], param: str = "prompt") -> None:
    """Raise `PromptLimitError` where prompts are too long together.

    Args:
        context: Of their request.
        tokens: How many each of them has.
        param: The field to blame.
    """
    limit = context.max_prompt_tokens
    if limit is not None and (total := sum(tokens)) > limit:
        raise PromptLimitError(param, limit, total)


def check_answers(context: RequestContext, answers: int) -> None:
    """Raise `OverLimitError` where a request asks for too many answers."""
    limit = context.max_n
    if limit is not None and answers > limit:
        raise OverLimitError(
            "n",
            f"A request may ask for at most {limit} answers here, to all its prompts together, but "
            f"yours asks for {answers}.",
            "max_n",
        )


def within_allowance(
    context: RequestContext, params: SamplingParams, *, strict: bool
) -> SamplingParams:
    """The parameters, with no more tokens than an answer may have.

    Args:
        context: Of the request.
        params: As the request has them.
        strict: Whether to refuse what would be cut short.

    Raises:
        OverLimitError: It is to be refused.
    """
    limit, asked = context.max_output_tokens, params.max_tokens
    if limit is None or (asked is not None and asked <= limit):
        return params
    if strict and asked is not None:
        message = f"An answer may have at most {limit} tokens here, but you asked for {asked}."
        raise OverLimitError("max_tokens", message, "max_output_tokens")
    return replace(params, max_tokens=limit)
