"""What requests must satisfy before they are queued, and executors' results before they count."""

from __future__ import annotations

from caudal.backends.executor import SequenceStep, StepResult
from caudal.engine.config import EngineConfig
from caudal.engine.request import Generate, Request
from caudal.errors import ContextOverflowError, OverLimitError, ParameterError
from caudal.sampling_params import SamplingParams


def check_request(request: Request, config: EngineConfig, vocab_size: int) -> None:
    """Check a request against the model and the engine's limits.

    Raises:
        ContextOverflowError: The prompt, or prompt and `min_tokens`, exceed `max_model_len`. An
            answer may ask for more tokens than there is room for: it ends where the context does.
        OverLimitError: `n` exceeds `max_num_seqs`.
        ParameterError: A token id does not exist, or a timeout or
            the weight is not a positive number; or the model can't generate.
    """
    prompt = request.prompt
    if len(prompt) == 0:
        raise ParameterError("prompt", "prompt must have at least one token.")
    _check_context(request, config.max_model_len)
    if set(map(type, prompt)) != {int}:
        raise ParameterError("prompt", "prompt token ids must be integers.")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= vocab_size:
        raise ParameterError(
            "prompt",
            f"prompt has token id {low if low < 0 else high}, but this model's ids are 0 to "
            f"{vocab_size - 1}.",
        )
    if isinstance(request.work, Generate):
        _check_params(request.work.params, config, vocab_size)
    for name in ("first_token_timeout", "timeout"):
        seconds = getattr(request, name)
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ParameterError(name, f"{name} must be more than 0 seconds, but is {seconds}.")
    if not 0 < request.weight < float("inf"):
        raise ParameterError("weight", f"weight must be more than 0, but is {request.weight}.")


def max_output_tokens(request: Request, max_model_len: int) -> int:
    """Most tokens that each sequence of a checked request may generate."""
    remaining = max_model_len - len(request.prompt)
    max_tokens = request.work.max_tokens
    return remaining if max_tokens is None else min(remaining, max_tokens)


def check_result(step: SequenceStep, result: StepResult, vocab_size: int) -> None:
    """Check what an executor returned for a step.

    Raises:
        ValueError: The executor reports an error, or the result isn't what was asked for.
    """
    samples, scores = len(step.samples), len(step.score_targets)
    if result.error is not None:
        raise ValueError(result.error)
    if (result.pooled is None) != (step.pooled_rows is None):
        got, asked = ("no", "one") if result.pooled is None else ("a", "none")
        raise ValueError(f"the executor returned {got} sum of states where {asked} was asked for")
    if step.proposed and 1 <= len(result.samples) <= samples:
        accepted = [sampled.token for sampled in result.samples[:-1]]
        if accepted != list(step.tokens[-step.proposed :][: len(accepted)]):
            raise ValueError("the executor drew on behind a token other than the one proposed")
        samples = len(result.samples)
    if len(result.samples) != samples or len(result.scores) != scores:
        raise ValueError(
            f"the executor returned {len(result.samples)} tokens and {len(result.scores)} "
            f"scores where {samples} and {scores} were asked for"
        )
    for sampled in result.samples:
        if not 0 <= sampled.token < vocab_size:
            raise ValueError(f"the executor returned token {sampled.token}")


def _check_params(params: SamplingParams, config: EngineConfig, vocab_size: int) -> None:
    params.validate_for_vocabulary(vocab_size)
    if config.encoder:
        raise ParameterError("model", "This model makes embeddings; it can't generate text.")
    if params.n > config.max_num_seqs:
        raise OverLimitError(
            "n",
            f"n must not exceed the {config.max_num_seqs} sequences that this server runs at once, "
            f"but is {params.n}.",
            "max_n",
        )


def _check_context(request: Request, max_model_len: int) -> None:
    prompt_tokens = len(request.prompt)
    remaining = max_model_len - prompt_tokens
    work = request.work
    if remaining < 0 or (remaining < 1 and work.max_tokens != 0):
        raise ContextOverflowError("prompt", max_model_len, prompt_tokens)
    if remaining < work.min_tokens:
        raise ContextOverflowError("min_tokens", max_model_len, prompt_tokens, work.min_tokens)
