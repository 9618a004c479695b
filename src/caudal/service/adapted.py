"""A model that answers with one of its adapters: a service as any other, to those who ask."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from msgspec import structs

from caudal.service.answers import Embedding, PairScore
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.forwarding import ForwardingService
from caudal.service.info import AdapterInfo, ServiceInfo
from caudal.service.service import RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork


class AdaptedService(ForwardingService):
    """A model with one of its adapters.

    Args:
        base: The model.
        adapter: The adapter.

    Attributes:
        base: The model.
        adapter: The adapter.
    """

    def __init__(self, base: Service, adapter: AdapterInfo) -> None:
        self.base = base
        self.adapter = adapter

    @cached_property
    def info(self) -> ServiceInfo:
        """That of the model, under the adapter's name."""
        info, adapter = self.base.info, self.adapter
        deciding = repr((adapter.path, adapter.created, adapter.number))
        digest = hashlib.sha256(deciding.encode(errors="replace")).hexdigest()
        return replace(
            info,
            names=(adapter.name,),
            created=adapter.created,
            fingerprint=f"{info.fingerprint}-{digest[:8]}",
        )

    @property
    def target(self) -> Service:
        """The model."""
        return self.base

    async def chat(self, work: ChatWork, context: RequestContext = NO_CONTEXT) -> RunningChat:
        """See `Service`."""
        return await self.base.chat(work, self._with_adapter(context))

    async def complete(
        self, work: CompletionWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[RunningText]:
        """See `Service`."""
        return await self.base.complete(work, self._with_adapter(context))

    async def embed(
        self, work: EmbedWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[Embedding]:
        """See `Service`."""
        return await self.base.embed(work, self._with_adapter(context))

    async def score(
        self, work: ScoreWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[PairScore]:
        """See `Service`."""
        return await self.base.score(work, self._with_adapter(context))

    def _with_adapter(self, context: RequestContext) -> RequestContext:
        return structs.replace(context, adapter=self.adapter.name)
