"""Answers that another process makes, as far as their news have come in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Generic, TypeVar

from caudal.errors import WorkerEndedError
from caudal.service.answers import (
    ChatDelta,
    CompleteAnswer,
    Delta,
    OutputToken,
    SubmittedPrompt,
    Usage,
)
from caudal.workers.connection import Connection
from caudal.workers.messages import BegunAnswer, CollectedChat, News, raised

D = TypeVar("D")

WINDOW = 64
"""Pieces of news of an answer that wait here for their reader; all further ones wait in the worker,
where they are put together."""


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
