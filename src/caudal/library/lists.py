"""What is said for a list of prompts: once for all of them, or for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from caudal.errors import ParameterError
from caudal.sampling_params import SamplingParams

T = TypeVar("T")

Lora = str | Sequence[str | None] | None
"""The adapter to answer prompts with, by name: one for all, or one for each; None for none."""


def params_of_each(
    params: SamplingParams | Sequence[SamplingParams], count: int
) -> Sequence[SamplingParams]:
    """The parameters of each of so many prompts.

    Raises:
        ParameterError: They are none, or not as many.
    """
    if isinstance(params, SamplingParams):
        return [params] * count
    return _as_many(params, count, SamplingParams, "sampling_params", "SamplingParams")


def adapter_of_each(lora: Lora, count: int) -> Sequence[str | None]:
    """The adapters of each of so many prompts.

    Raises:
        ParameterError: They are none, or not as many.
    """
    if lora is None or isinstance(lora, str):
        return [lora] * count
    return _as_many(lora, count, str | None, "lora", "an adapter's name")


def place_of(index: int, *, is_one: bool) -> str:
    """What errors call a prompt: one that stands alone, or one of a list."""
    return "prompts" if is_one else f"prompts[{index}]"


def _as_many(values: Sequence[T], count: int, kind: object, name: str, what: str) -> Sequence[T]:
    if not isinstance(values, Sequence) or not all(isinstance(each, kind) for each in values):  # type: ignore[arg-type]
        raise ParameterError(name, f"{name} must be {what} or a list of them.")
    if len(values) != count:
        raise ParameterError(name, f"There are {count} prompts but {len(values)} {name}.")
    return values
