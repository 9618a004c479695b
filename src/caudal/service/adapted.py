"""A model that answers with one of its adapters: a service as any other, to those who ask."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from caudal.chat.conversation import Conversation
from caudal.engine.stats import EngineStats
from caudal.service.answers import ConversationSize, Embedding, PairScore, TokenForm, Tokens
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.info import AdapterInfo, ServiceInfo
from caudal.service.service import RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork
from caudal.structured_outputs import StructuredOutputsParams


class AdaptedService(Service):
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
    def healthy(self) -> bool:
        """See `Service`."""
        return self.base.healthy

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        """Those of the model."""
        return self.base.adapters

    async def stats(self) -> EngineStats:
        """See `Service`."""
        return await self.base.stats()

    async def metrics(self) -> bytes:
        """See `Service`."""
        return await self.base.metrics()

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

    async def tokenize(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """See `Service`."""
        return await self.base.tokenize(
            text, add_special=add_special, parse_special=parse_special, show=show
        )

    async def tokenize_chat(
        self,
        conversation: Conversation,
        *,
        add_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """See `Service`."""
        return await self.base.tokenize_chat(conversation, add_special=add_special, show=show)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """See `Service`."""
        return await self.base.detokenize(tokens)

    async def measure(
        self, conversation: Conversation, form: StructuredOutputsParams | None = None
    ) -> ConversationSize:
        """See `Service`."""
        return await self.base.measure(conversation, form)

    async def render(self, conversation: Conversation) -> str:
        """See `Service`."""
        return await self.base.render(conversation)

    async def load_adapter(
        self, name: str, path: str, *, replace: bool = False, room: int | None = None
    ) -> Sequence[AdapterInfo]:
        """See `Service`."""
        return await self.base.load_adapter(name, path, replace=replace, room=room)

    async def unload_adapter(self, name: str) -> Sequence[AdapterInfo]:
        """See `Service`."""
        return await self.base.unload_adapter(name)

    async def shutdown(self) -> None:
        """See `Service`."""
        await self.base.shutdown()

    def _with_adapter(self, context: RequestContext) -> RequestContext:
        return replace(context, adapter=self.adapter.name)
