"""The asking end of a channel: calls, and the news of answers that run."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from caudal.engine.wire import pack, unpack
from caudal.workers.channel import Channel
from caudal.workers.launcher import LoadProgress, ignore_progress
from caudal.workers.messages import (
    METHODS,
    Call,
    Cancel,
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

_ALWAYS = frozenset(("collect", "close", "shutdown", "stats", "metrics"))
"""What goes on with answers that run, and is asked of one that takes no new requests."""


class RunningNews(Protocol):
    """An answer that runs, as far as a connection needs to know it."""

    @property
    def number(self) -> int:
        """The worker's number of it."""

    def put(self, news: News[Any]) -> None:
        """Take a piece of news."""

    def fail(self, error: Exception) -> None:
        """There will be no more of them."""


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
        self._answers: dict[int, RunningNews] = {}
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

    def add(self, answer: RunningNews) -> None:
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
