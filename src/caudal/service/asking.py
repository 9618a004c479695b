"""Who asks, as far as those have to know who choose a model: plain facts of one request."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from caudal.sampling_params import SamplingParams
from caudal.service.service import Service

T = TypeVar("T")

BYTES_PER_TOKEN = 4
"""Of UTF-8, about, in most languages and in code: what a prompt's tokens are estimated by."""


class Asking(Protocol):
    """A request, before there is a model for it."""

    def header(self, name: str) -> str | None:
        """What it says in a header; None where it has none of that name."""

    @property
    def prompt_tokens(self) -> int:
        """About how long its prompt is: tokens, where a text has one in `BYTES_PER_TOKEN`."""

    async def sampling_params(self, model: Service) -> SamplingParams | None:
        """What it would be sampled with by a model; None where only that is known which it sent.

        Raises:
            ParameterError: It asks for what can't be.
        """

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for what may take long, as long as whoever asks does."""


class Nobody(Asking):
    """Who asks about models without a request for one."""

    def header(self, name: str) -> str | None:
        """None."""
        return None

    @property
    def prompt_tokens(self) -> int:
        """None."""
        return 0

    async def sampling_params(self, model: Service) -> SamplingParams | None:
        """Unknown."""
        return None

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait."""
        return await work


NOBODY = Nobody()
