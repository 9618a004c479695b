"""A model's service in another process: what passes its door goes over a channel."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Generic, TypeVar

from caudal.chat.conversation import Conversation
from caudal.engine.stats import EngineStats
from caudal.engine.wire import pack, unpack
from caudal.errors import WorkerEndedError
from caudal.service.answers import (
    ChatDelta,
    CompleteAnswer,
    ConversationSize,
    Delta,
    Embedding,
    OutputToken,
    PairScore,
    SubmittedPrompt,
    TokenForm,
    Tokens,
    Usage,
)
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.info import AdapterInfo, ServiceInfo
from caudal.service.service import RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork
from caudal.structured_outputs import StructuredOutputsParams
from caudal.workers.channel import Channel
from caudal.workers.launcher import LoadProgress, ignore_progress
from caudal.workers.messages import (
    METHODS,
    BegunAnswer,
    Call,
    Cancel,
    CollectedChat,
    Ending,
    Failed,
    Loading,
    News,
    OfWorker,
    Read,
    Returned,
    Updates,
    raised,
)

logger = logging.getLogger(__name__)

D = TypeVar("D")

WINDOW = 64
"""Pieces of news of an answer that wait here for their reader; all further ones wait in the worker,
where they are put together."""


_ALWAYS = frozenset(("collect", "close", "shutdown", "stats", "metrics"))
"""What goes on with answers that run, and is asked of one that takes no new requests."""


class Connection:
    """The asking end of a channel.

    Attributes:
        on_progress: Called with how far loading is.
        on_end: Called once, when nothing comes in any more, with why, where the worker has said so
            or is to blame: the end of a sentence about its process.
    """

    def __init__(self) -> None:
        self.on_progress: Callable[[LoadProgress], None] = ignore_progress
        self.on_end: Callable[[str | None], None] = lambda reason: None
        self._channel = Channel(OfWorker, self._on_message, self._on_channel_end)
        self._calls: dict[int, tuple[asyncio.Future[Any], Any]] = {}
        self._answers: dict[int, _RemoteAnswer[Any]] = {}
        self._numbers = itertools.count(1)
        self._reason: str | None = None
        self._error: Exception | None = None
        self._refusal: Exception | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def open(self, sock: socket.socket) -> None:
        """Begin, over one end of a socket pair, which is its own from here on."""
        await self._channel.open(sock)

    @property
    def ended(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._channel.ended or self._error is not None or self._refusal is not None

    async def wait_idle(self) -> None:
        """Wait until nothing is being asked, or answered."""
        while self._calls or self._answers:
            self._idle.clear()
            await self._idle.wait()

    def refuse(self, error: Exception) -> None:
        """Have what is asked from here on fail; what runs goes on, to be read or closed."""
        self._refusal = error

    async def call(self, method: str, *arguments: Any) -> Any:
        """Have the worker do something.

        Args:
            method: One of `METHODS`.
            arguments: What it takes.

        Raises:
            WorkerEndedError: The worker has ended, or does before it is done.
            RemoteFailureError: It has failed in an unexpected way.
            CaudalError: Whatever the method raises.
        """
        packed = pack(arguments)
        # Who gives up an answer may be given up meanwhile: it has to end even so.
        closes = method == "close"
        if not closes:
            await self._channel.wait_writable()
        if self._error is not None:
            raise self._error
        if self._refusal is not None and method not in _ALWAYS:
            raise self._refusal
        number = next(self._numbers)
        _, gives = METHODS[method]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = future, gives
        self._channel.send(Call(number, method, packed))
        try:
            return await future
        except asyncio.CancelledError:
            if not closes:
                self._channel.send(Cancel(number))
            raise
        finally:
            self._calls.pop(number, None)
            self._note_idle()

    def fail(self, error: Exception) -> None:
        """Have all that is asked, or will be, fail; once its worker has ended."""
        self._error = error
        for future, _ in self._calls.values():
            if not future.done():
                future.set_exception(error)
        self._calls.clear()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.fail(error)
        self._idle.set()

    def close(self) -> None:
        """Ask nothing any more. Safe to call twice."""
        self._channel.close()

    def add(self, answer: _RemoteAnswer[Any]) -> None:
        """Bring an answer its news from here on."""
        self._answers[answer.number] = answer

    def forget(self, number: int) -> None:
        """An answer has ended."""
        self._answers.pop(number, None)
        self._note_idle()

    def read(self, number: int, pieces: int) -> None:
        """There is room for so many more pieces of news of an answer."""
        self._channel.send(Read(number, pieces))

    def _note_idle(self) -> None:
        if not self._calls and not self._answers:
            self._idle.set()

    def _on_message(self, message: OfWorker) -> None:
        match message:
            case Updates(texts, chats):
                self._hand_out(texts)
                self._hand_out(chats)
            case Returned(number, result):
                if (waiting := self._calls.get(number)) and not waiting[0].done():
                    future, gives = waiting
                    future.set_result(unpack(result, gives))
            case Failed(number, error):
                if (waiting := self._calls.get(number)) and not waiting[0].done():
                    waiting[0].set_exception(raised(error))
            case Loading(progress):
                self.on_progress(progress)
            case Ending(reason):
                self._reason = reason

    def _hand_out(self, pieces: Sequence[News[Any]]) -> None:
        answers = self._answers
        for news in pieces:
            if answer := answers.get(news.answer):
                answer.put(news)

    def _on_channel_end(self, error: Exception | None) -> None:
        if error is not None:
            logger.error("what a worker sent can't be read: %s", error)
            self._reason = "was ended, for it sent what can't be read"
        self.on_end(self._reason)


class _RemoteAnswer(Generic[D]):
    """A running answer, as far as its news have come in."""

    def __init__(self, connection: Connection, begun: BegunAnswer) -> None:
        self.number = begun.answer
        self.prompt: SubmittedPrompt = begun.prompt
        self.usage: Usage = begun.usage
        self.prompt_tokens: Sequence[OutputToken] = ()
        self._connection = connection
        self._news: list[News[D]] = []
        self._reader: asyncio.Future[None] | None = None
        self._ended = False
        self._error: Exception | None = None
        connection.add(self)

    def put(self, news: News[D]) -> None:
        """Take a piece of news."""
        self._news.append(news)
        self._wake()

    def fail(self, error: Exception) -> None:
        """There will be no more of them."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    async def deltas(self) -> AsyncGenerator[list[D], None]:
        """See `RunningText.deltas`."""
        loop = asyncio.get_running_loop()
        self._connection.read(self.number, WINDOW)
        unread = 0  # pieces that there is room for again
        try:
            while not self._ended:
                while not self._news:
                    if self._error is not None:
                        raise self._error
                    self._reader = loop.create_future()
                    await self._reader
                pieces, self._news = self._news, []
                deltas, error = self._take(pieces)
                if deltas:
                    yield deltas
                if error is not None:
                    raise error
                unread += len(pieces)
                if unread >= WINDOW // 2 and not self._ended:
                    self._connection.read(self.number, unread)
                    unread = 0
        finally:
            await self.aclose()

    def _take(self, pieces: Sequence[News[D]]) -> tuple[list[D], Exception | None]:
        deltas: list[D] = []
        error = None
        for news in pieces:
            deltas += news.deltas
            self.usage = news.usage
            if news.prompt_tokens:
                self.prompt_tokens = news.prompt_tokens
            if news.ended:
                self._end()
                error = None if news.error is None else raised(news.error)
        return deltas, error

    async def aclose(self) -> None:
        """See `RunningAnswer.aclose`."""
        if self._ended:
            return
        self._end()
        if self._error is None:
            try:
                usage = await self._connection.call("close", self.number)
            except WorkerEndedError:
                return
            if usage is not None:
                self.usage = usage

    def _end(self) -> None:
        self._ended = True
        self._connection.forget(self.number)


class RemoteText(_RemoteAnswer[Delta]):
    """A prompt that is continued in another process."""


class RemoteChat(_RemoteAnswer[ChatDelta]):
    """A conversation that is answered in another process.

    Attributes:
        ignored: See `RunningChat`.
    """

    def __init__(self, connection: Connection, begun: BegunAnswer) -> None:
        super().__init__(connection, begun)
        self.ignored: Sequence[str] = begun.ignored

    async def collect(self) -> list[CompleteAnswer]:
        """See `RunningChat`; where that fails, closing it tells what it took."""
        collected: CollectedChat = await self._connection.call("collect", self.number)
        self._end()
        self.usage = collected.usage
        self.prompt_tokens = collected.prompt_tokens
        return list(collected.answers)


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
