"""A model's service in another process: what passes its door goes over a channel."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from caudal.chat.conversation import Conversation
from caudal.engine.stats import EngineStats
from caudal.engine.tiers.figures import PrefixCacheFigures, PrefixCacheReset, SpaceChoice
from caudal.errors import WorkerEndedError
from caudal.service.answers import ConversationSize, Embedding, PairScore, TokenForm, Tokens
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.info import AdapterInfo, ServiceInfo
from caudal.service.service import RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork
from caudal.structured_outputs import StructuredOutputsParams
from caudal.workers.connection import Connection
from caudal.workers.remote_answer import RemoteChat, RemoteText


class RemoteService(Service):
    """A model's service in another process.

    Args:
        connection: To it.
        info: What it says of itself.
        adapters: Those that it has; it gets others through here only.
    """

    def __init__(
        self, connection: Connection, info: ServiceInfo, adapters: Sequence[AdapterInfo] = ()
    ) -> None:
        self._connection = connection
        self._info = info
        self._adapters = adapters

    @classmethod
    async def connected(cls, connection: Connection) -> RemoteService:
        """The service behind a connection.

        Raises:
            WorkerEndedError: It has ended.
        """
        return cls(connection, await connection.call("info"), await connection.call("adapters"))

    @property
    def info(self) -> ServiceInfo:
        """See `Service`."""
        return self._info

    @property
    def healthy(self) -> bool:
        """See `Service`."""
        return not self._connection.ended

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        """See `Service`."""
        return self._adapters

    async def stats(self) -> EngineStats:
        """See `Service`."""
        stats: EngineStats = await self._connection.call("stats")
        return stats

    async def metrics(self) -> bytes:
        """See `Service`."""
        metrics: bytes = await self._connection.call("metrics")
        return metrics

    async def chat(self, work: ChatWork, context: RequestContext = NO_CONTEXT) -> RunningChat:
        """See `Service`."""
        begun = await self._connection.call("chat", work, context.begun())
        return RemoteChat(self._connection, begun)

    async def complete(
        self, work: CompletionWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[RunningText]:
        """See `Service`."""
        begun = await self._connection.call("complete", work, context.begun())
        return [RemoteText(self._connection, each) for each in begun]

    async def embed(
        self, work: EmbedWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[Embedding]:
        """See `Service`."""
        vectors: list[Embedding] = await self._connection.call("embed", work, context.begun())
        return vectors

    async def score(
        self, work: ScoreWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[PairScore]:
        """See `Service`."""
        scores: list[PairScore] = await self._connection.call("score", work, context.begun())
        return scores

    async def tokenize(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """See `Service`."""
        tokens: Tokens = await self._connection.call(
            "tokenize", text, add_special, parse_special, show
        )
        return tokens

    async def tokenize_chat(
        self,
        conversation: Conversation,
        *,
        add_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """See `Service`."""
        tokens: Tokens = await self._connection.call(
            "tokenize_chat", conversation, add_special, show
        )
        return tokens

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """See `Service`."""
        text: str = await self._connection.call("detokenize", tokens)
        return text

    async def measure(
        self, conversation: Conversation, form: StructuredOutputsParams | None = None
    ) -> ConversationSize:
        """See `Service`."""
        size: ConversationSize = await self._connection.call("measure", conversation, form)
        return size

    async def render(self, conversation: Conversation) -> str:
        """See `Service`."""
        text: str = await self._connection.call("render", conversation)
        return text

    async def prefix_cache(self) -> PrefixCacheFigures:
        """See `Service`."""
        figures: PrefixCacheFigures = await self._connection.call("prefix_cache")
        return figures

    async def reset_prefix_cache(self, choice: SpaceChoice) -> PrefixCacheReset:
        """See `Service`."""
        done: PrefixCacheReset = await self._connection.call("reset_prefix_cache", choice)
        return done

    async def load_adapter(
        self, name: str, path: str, *, replace: bool = False, room: int | None = None
    ) -> Sequence[AdapterInfo]:
        """See `Service`."""
        self._adapters = await self._connection.call("load_adapter", name, path, replace, room)
        return self._adapters

    async def unload_adapter(self, name: str) -> Sequence[AdapterInfo]:
        """See `Service`."""
        self._adapters = await self._connection.call("unload_adapter", name)
        return self._adapters

    async def shutdown(self) -> None:
        """See `Service`."""
        with contextlib.suppress(WorkerEndedError):
            await self._connection.call("shutdown")
