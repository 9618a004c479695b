"""The worker's side of a channel: does what is called, and tells what is new in running answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from caudal.chat.conversation import Conversation
from caudal.engine.wire import ErrorData, pack, unpack
from caudal.errors import CaudalError
from caudal.logs.request import current_request, work_for
from caudal.service.answers import Embedding, PairScore, TokenForm, Tokens, Usage
from caudal.service.context import RequestContext
from caudal.service.info import AdapterInfo, ServiceInfo
from caudal.service.service import RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork
from caudal.workers.channel import Channel
from caudal.workers.messages import (
    METHODS,
    BegunAnswer,
    Call,
    Cancel,
    CollectedChat,
    Failed,
    News,
    Read,
    Returned,
    ToWorker,
    Updates,
    error_data,
)

logger = logging.getLogger("caudal.worker.calls")

Handler = Callable[..., Awaitable[Any]]
"""Takes the number of the call, and what the method takes."""


class CallServer:
    """Does what is called on a channel, each call in a task of its own.

    Args:
        on_end: See `Channel`.

    Attributes:
        channel: What it answers on, once that is open.
        handlers: What does it, by method. More may be added.
        on_cancel: Called with the number of a call that nobody waits for any more.
        on_read: Called with what is said of answers.
    """

    def __init__(self, on_end: Callable[[Exception | None], None]) -> None:
        self.channel = Channel(ToWorker, self._on_message, on_end)
        self.handlers: dict[str, Handler] = {}
        self.on_cancel: Callable[[int], None] = lambda call: None
        self.on_read: Callable[[Read], None] = lambda read: None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def _on_message(self, message: ToWorker) -> None:
        match message:
            case Call():
                task = asyncio.ensure_future(self._do(message))
                self._tasks[message.call] = task
                task.add_done_callback(lambda _: self._tasks.pop(message.call, None))
            case Cancel():
                running = self._tasks.get(message.call)
                if running is not None:
                    running.cancel()
                self.on_cancel(message.call)
            case Read():
                self.on_read(message)

    async def end(self) -> None:
        """Give up all calls."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _do(self, message: Call) -> None:
        try:
            handler = self.handlers.get(message.method)
            if handler is None:
                raise ValueError(f"there is no method {message.method!r}")
            takes, _ = METHODS[message.method]
            result = await handler(message.call, *unpack(message.arguments, takes))
            self.channel.send(Returned(message.call, pack(result)))
        except Exception as error:
            if not isinstance(error, CaudalError):
                logger.exception("%s has failed", message.method)
            self.channel.send(Failed(message.call, error_data(error)))


class _Answer:
    """A running answer.

    Args:
        call: The call that began it.
        running: It.
    """

    def __init__(self, call: int, running: RunningText | RunningChat) -> None:
        self.call = call
        self.running: Any = running
        self.request_id = current_request()
        self.pump: asyncio.Task[None] | None = None
        self.room = 0
        self.has_room = asyncio.Event()


class ServiceHost:
    """Has a service answer what is called.

    Args:
        service: The service.
        server: What calls come to.
    """

    def __init__(self, service: Service, server: CallServer) -> None:
        self._service = service
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, _Answer] = {}
        self._numbers = itertools.count(1)
        self._texts: list[News[Any]] = []
        self._chats: list[News[Any]] = []
        self._closing: set[asyncio.Future[Any]] = set()
        server.handlers |= self._handlers()
        server.on_cancel = self._cancel
        server.on_read = self._read

    def _handlers(self) -> Mapping[str, Handler]:
        service = self._service

        async def info(call: int) -> ServiceInfo:
            return service.info

        async def adapters(call: int) -> Sequence[AdapterInfo]:
            return service.adapters

        async def load_adapter(
            call: int, name: str, path: str, replace: bool, room: int | None
        ) -> Sequence[AdapterInfo]:
            return await service.load_adapter(name, path, replace=replace, room=room)

        async def tokenize(
            call: int, text: str, add_special: bool, parse_special: bool, show: TokenForm | None
        ) -> Tokens:
            return await service.tokenize(
                text, add_special=add_special, parse_special=parse_special, show=show
            )

        async def tokenize_chat(
            call: int, conversation: Conversation, add_special: bool, show: TokenForm | None
        ) -> Tokens:
            return await service.tokenize_chat(conversation, add_special=add_special, show=show)

        async def embed(call: int, work: EmbedWork, context: RequestContext) -> Sequence[Embedding]:
            work_for(context.request_id)
            return await service.embed(work, context)

        async def score(call: int, work: ScoreWork, context: RequestContext) -> Sequence[PairScore]:
            work_for(context.request_id)
            return await service.score(work, context)

        def plain(method: Callable[..., Awaitable[Any]]) -> Handler:
            async def handle(call: int, *arguments: Any) -> Any:
                return await method(*arguments)

            return handle

        return {
            "info": info,
            "stats": plain(service.stats),
            "metrics": plain(service.metrics),
            "chat": self._chat,
            "complete": self._complete,
            "collect": self._collect,
            "close": self._close,
            "embed": embed,
            "score": score,
            "tokenize": tokenize,
            "tokenize_chat": tokenize_chat,
            "detokenize": plain(service.detokenize),
            "measure": plain(service.measure),
            "render": plain(service.render),
            "prefix_cache": plain(service.prefix_cache),
            "reset_prefix_cache": plain(service.reset_prefix_cache),
            "adapters": adapters,
            "load_adapter": load_adapter,
            "unload_adapter": plain(service.unload_adapter),
            "shutdown": self._shutdown,
        }

    async def _chat(self, call: int, work: ChatWork, context: RequestContext) -> BegunAnswer:
        work_for(context.request_id)
        running = await self._service.chat(work, context)
        return self._begin(call, running, running.ignored)

    async def _complete(
        self, call: int, work: CompletionWork, context: RequestContext
    ) -> Sequence[BegunAnswer]:
        work_for(context.request_id)
        running = await self._service.complete(work, context)
        return [self._begin(call, each) for each in running]

    def _begin(
        self, call: int, running: RunningText | RunningChat, ignored: Sequence[str] = ()
    ) -> BegunAnswer:
        number = next(self._numbers)
        self._answers[number] = _Answer(call, running)
        return BegunAnswer(number, running.prompt, running.usage, ignored)

    async def _collect(self, call: int, number: int) -> CollectedChat:
        answer = self._answers[number]
        work_for(answer.request_id)
        try:
            answers = await answer.running.collect()
        except BaseException:
            await answer.running.aclose()  # and `close` is about to ask what it took
            raise
        await self._give_up(number, answer)
        return CollectedChat(answers, answer.running.usage, answer.running.prompt_tokens)

    async def _close(self, call: int, number: int) -> Usage | None:
        answer = self._answers.get(number)
        if answer is None:  # its end is on its way
            return None
        work_for(answer.request_id)
        await self._give_up(number, answer)
        return answer.running.usage  # type: ignore[no-any-return]

    async def _shutdown(self, call: int) -> None:
        await self._service.shutdown()
        pumps = [answer.pump for answer in self._answers.values() if answer.pump is not None]
        if pumps:  # their last words
            await asyncio.wait(pumps)

    async def _give_up(self, number: int, answer: _Answer) -> None:
        self._answers.pop(number, None)
        if answer.pump is not None:
            answer.pump.cancel()
        await answer.running.aclose()

    def _cancel(self, call: int) -> None:
        """Nobody waits for a call any more: end the answers that it has begun."""
        for number, answer in list(self._answers.items()):
            if answer.call == call:
                closing = asyncio.ensure_future(self._give_up(number, answer))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def _read(self, read: Read) -> None:
        answer = self._answers.get(read.answer)
        if answer is None:
            return
        answer.room += read.pieces
        answer.has_room.set()
        if answer.pump is None:
            news = self._chats if hasattr(answer.running, "ignored") else self._texts
            answer.pump = asyncio.ensure_future(self._pump(read.answer, answer, news))

    async def _pump(self, number: int, answer: _Answer, news: list[News[Any]]) -> None:
        """Tell what is new in an answer, while there is room for it on the other side.

        Where there is none, news gather in the engine's stream, as they do for any slow reader.
        """
        work_for(answer.request_id)
        running = answer.running
        error: ErrorData | None = None
        is_first = True
        try:
            async with contextlib.aclosing(running.deltas()) as stream:
                async for deltas in stream:
                    tokens = running.prompt_tokens if is_first else ()
                    is_first = False
                    self._tell(news, News(number, deltas, running.usage, tokens))
                    answer.room -= 1
                    while answer.room <= 0:
                        answer.has_room.clear()
                        await answer.has_room.wait()
        except Exception as caught:
            if not isinstance(caught, CaudalError):
                logger.exception("an answer has failed")
            error = error_data(caught)
        self._answers.pop(number, None)
        self._tell(news, News(number, (), running.usage, ended=True, error=error))

    def _tell(self, news: list[News[Any]], piece: News[Any]) -> None:
        # One go of the loop brings an iteration's tokens to all who wait for them. What they wake
        # runs before what is put behind them here.
        if not self._texts and not self._chats:
            self._loop.call_soon(self._send)
        news.append(piece)

    def _send(self) -> None:
        self._server.channel.send(Updates(self._texts, self._chats))
        self._texts.clear()
        self._chats.clear()
