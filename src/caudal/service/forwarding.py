"""A service that has another one do what it doesn't do itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from caudal.chat.conversation import Conversation
from caudal.engine.stats import EngineStats
from caudal.engine.tiers.figures import PrefixCacheFigures, PrefixCacheReset, SpaceChoice
from caudal.service.answers import ConversationSize, Embedding, PairScore, TokenForm, Tokens
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.info import AdapterInfo, ServiceInfo
from caudal.service.service import RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork
from caudal.structured_outputs import StructuredOutputsParams


class ForwardingService(Service):
    """Passes on all that is asked of it; what is to be otherwise, others override."""

    @property
    @abstractmethod
    def target(self) -> Service:
        """Who is asked now."""

    @property
    def info(self) -> ServiceInfo:
        """See `Service`."""
        return self.target.info

    @property
    def healthy(self) -> bool:
        """See `Service`."""
        return self.target.healthy

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        """See `Service`."""
        return self.target.adapters

    async def stats(self) -> EngineStats:
        """See `Service`."""
        return await self.target.stats()

    async def metrics(self) -> bytes:
        """See `Service`."""
        return await self.target.metrics()

    async def chat(self, work: ChatWork, context: RequestContext = NO_CONTEXT) -> RunningChat:
        """See `Service`."""
        return await self.target.chat(work, context)

    async def complete(
        self, work: CompletionWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[RunningText]:
        """See `Service`."""
        return await self.target.complete(work, context)

    async def embed(
        self, work: EmbedWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[Embedding]:
        """See `Service`."""
        return await self.target.embed(work, context)

    async def score(
        self, work: ScoreWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[PairScore]:
        """See `Service`."""
        return await self.target.score(work, context)

    async def tokenize(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """See `Service`."""
        return await self.target.tokenize(
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
        return await self.target.tokenize_chat(conversation, add_special=add_special, show=show)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """See `Service`."""
        return await self.target.detokenize(tokens)

    async def measure(
        self, conversation: Conversation, form: StructuredOutputsParams | None = None
    ) -> ConversationSize:
        """See `Service`."""
        return await self.target.measure(conversation, form)

    async def render(self, conversation: Conversation) -> str:
        """See `Service`."""
        return await self.target.render(conversation)

    async def prefix_cache(self) -> PrefixCacheFigures:
        """See `Service`."""
        return await self.target.prefix_cache()

    async def reset_prefix_cache(self, choice: SpaceChoice) -> PrefixCacheReset:
        """See `Service`."""
        return await self.target.reset_prefix_cache(choice)

    async def load_adapter(
        self, name: str, path: str, *, replace: bool = False, room: int | None = None
    ) -> Sequence[AdapterInfo]:
        """See `Service`."""
        return await self.target.load_adapter(name, path, replace=replace, room=room)

    async def unload_adapter(self, name: str) -> Sequence[AdapterInfo]:
        """See `Service`."""
        return await self.target.unload_adapter(name)

    async def shutdown(self) -> None:
        """See `Service`."""
        await self.target.shutdown()
