"""A request, as those see it who choose a model for it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from caudal.sampling_params import SamplingParams
from caudal.server.request_bodies import GenerationRequestBody, ModelRequestBody
from caudal.server.streaming import run_until_disconnect
from caudal.server.waiting_for_models import models_of
from caudal.service.asking import BYTES_PER_TOKEN, Asking
from caudal.service.service import Service

T = TypeVar("T")


class RequestAsking(Asking):
    """A request of HTTP.

    Args:
        request: The request.
        body: What it says.

    Attributes:
        body: What it says.
    """

    def __init__(self, request: Request, body: ModelRequestBody) -> None:
        self._request = request
        self.body = body

    def header(self, name: str) -> str | None:
        """See `Asking`."""
        return self._request.headers.get(name)

    @cached_property
    def prompt_tokens(self) -> int:
        """See `Asking`."""
        return estimated_tokens(self.body.prompt_parts(self._request))

    async def sampling_params(self, model: Service) -> SamplingParams | None:
        """See `Asking`."""
        body = self.body
        return await body.params_for(model) if isinstance(body, GenerationRequestBody) else None

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """See `Asking`; a stream gets comments meanwhile."""
        waiting = run_until_disconnect(self._request, work)
        if not self.body.streams():
            return await waiting
        return await models_of(self._request.scope).streaming_while(waiting)


def estimated_tokens(parts: Iterable[Any]) -> int:
    """About how many tokens there are in texts, in whatever is made of them, and in token ids."""
    return -(-sum(map(_bytes, parts)) // BYTES_PER_TOKEN)


def _bytes(part: Any) -> int:
    if isinstance(part, str):
        return len(part) if part.isascii() else len(part.encode(errors="replace"))
    if isinstance(part, int):
        return BYTES_PER_TOKEN
    return sum(map(_bytes, _inside(part)))


def _inside(part: Any) -> Iterator[Any]:
    if isinstance(part, BaseModel):
        yield from part.__dict__.values()
        yield from (part.model_extra or {}).values()
    elif isinstance(part, Mapping):
        yield from part
        yield from part.values()
    elif isinstance(part, list | tuple):
        yield from part
