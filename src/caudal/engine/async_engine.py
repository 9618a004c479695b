"""The engine in a thread of its own, for callers that live on an asyncio event loop.

The event loop never waits for an iteration: submissions and cancellations go into an inbox that the
engine's thread empties between iterations, and each iteration's updates come back in one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from caudal.backends.executor import ExecutorInfo
from caudal.engine.adapters import EngineAdapter
from caudal.engine.arriving import Arriving
from caudal.engine.config import EngineConfig
from caudal.engine.counters import BatchCounts
from caudal.engine.engine import Engine
from caudal.engine.grammar import Grammar
from caudal.engine.request import FinishReason, Request, SequenceUpdate
from caudal.engine.stats import EngineStats
from caudal.engine.tiers.figures import PrefixCacheFigures, PrefixCacheReset, SpaceChoice
from caudal.errors import EngineDeadError
from caudal.formats.lora.adapter import Adapter

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Mailbox:
    """Updates of one request on their way to its stream. Touched only by its event loop.

    Kept until the engine has reported every sequence's end, even if nobody reads it any more:
    so long the request's id stays taken.
    """

    __slots__ = ("abandoned", "error", "loop", "open_sequences", "reader", "updates")

    def __init__(self, loop: asyncio.AbstractEventLoop, sequences: int) -> None:
        self.loop = loop
        self.reader: asyncio.Future[None] | None = None
        self.updates: list[SequenceUpdate] = []
        self.open_sequences = sequences
        self.abandoned = False
        self.error: EngineDeadError | None = None

    def put(self, update: SequenceUpdate) -> None:
        if update.finish_reason is not None:
            self.open_sequences -= 1
        if not self.abandoned:
            self.updates.append(update)
            self._wake()

    def fail(self, error: EngineDeadError) -> None:
        self.error = error
        self._wake()

    def _wake(self) -> None:
        reader = self.reader
        if reader is not None and not reader.done():
            reader.set_result(None)


class RequestStream:
    """The updates of one request, as an asynchronous iterator of lists.

    Each item holds everything new since the last, at least one update; a slow reader gets longer
    lists, not a backlog. It ends when every sequence of the request has. Leaving early cancels
    the request: by `async with`, by `aclose`, or by dropping the stream. A cancelled `anext`
    (say, by `asyncio.wait_for`) does not: the stream can be read on. One reads at a time.

    Raises:
        EngineDeadError: From iteration, when the engine stops before the request has ended.
    """

    def __init__(self, request_id: str, mailbox: _Mailbox, engine: AsyncEngine) -> None:
        self.request_id = request_id
        self._mailbox = mailbox
        self._engine = engine
        self._closed = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> list[SequenceUpdate]:
        mailbox = self._mailbox
        while not mailbox.updates:
            if self._closed or mailbox.open_sequences == 0:
                self._closed = True
                raise StopAsyncIteration
            if mailbox.error is not None:
                self._closed = True
                raise mailbox.error
            if mailbox.reader is not None and not mailbox.reader.done():
                raise RuntimeError("this stream is being read already")
            mailbox.reader = mailbox.loop.create_future()
            await mailbox.reader
        updates, mailbox.updates = mailbox.updates, []
        return updates

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading; a request that has not ended is cancelled. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._engine._leave(self.request_id)

    def cancel(self, index: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End one of the request's sequences; see `AsyncEngine.cancel`."""
        self._engine.cancel(self.request_id, index, reason)

    def __del__(self) -> None:
        if not self._closed and not self._mailbox.loop.is_closed():
            # May run in any thread and amid any lock: only leave a note with the event loop.
            with contextlib.suppress(RuntimeError):  # closed just now
                self._mailbox.loop.call_soon_threadsafe(self._engine._leave, self.request_id)


class AsyncEngine:
    """Runs an engine in a thread; sleeps when there is nothing to do.

    Args:
        engine: The engine. From here on only its thread may touch it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stats = engine.stats()
        self._mailboxes: dict[str, _Mailbox] = {}
        self._inbox: deque[Callable[[], object]] = deque()
        self._arriving = Arriving()
        self._asked: set[Future[Any]] = set()
        self._wake = threading.Event()
        self._stopping = False
        self._rounds = 0
        self._waits = False
        self._refusal: str | None = None
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="caudal-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ExecutorInfo:
        """The executor's geometry and facts."""
        return self._engine.info

    @property
    def config(self) -> EngineConfig:
        """The engine's limits and policies."""
        return self._engine.config

    @property
    def healthy(self) -> bool:
        """Whether requests are taken and served."""
        return self._refusal is None

    @property
    def rounds(self) -> int | None:
        """How often its thread has gone round; None while it waits for something to do."""
        return None if self._waits else self._rounds

    def stats(self) -> EngineStats:
        """The engine's statistics as of its latest iteration. Never waits."""
        return self._stats

    def batches(self) -> BatchCounts:
        """What batches have been like. Never waits."""
        return self._engine.batches()

    def waiting_of_tenants(self) -> dict[str | None, int]:
        """How many sequences of each tenant wait, of those that have any waiting. Never waits."""
        return self._engine.waiting_of_tenants()

    @property
    def adapters(self) -> Sequence[EngineAdapter]:
        """The adapters that requests may ask for, in the order of loading. Never waits."""
        return self._engine.adapters.offered

    async def load_adapter(self, name: str, adapter: Adapter) -> EngineAdapter:
        """Take an adapter, before the next iteration; it is taken even if the call is cancelled.

        Args:
            name: What people call it.
            adapter: What it changes.

        Raises:
            ModelLoadError: See `Executor.load_adapter`.
            EngineDeadError: The engine has failed or is shutting down.
        """
        return await self._ask(lambda engine: engine.adapters.load(name, adapter))

    def unload_adapter(self, number: int) -> None:
        """Let no more requests have an adapter; it is gone once those that it has have ended."""
        with self._guard:
            self._engine.adapters.withdraw(number)
            self._post(lambda: self._engine.adapters.settle(number))

    async def prefix_cache(self) -> PrefixCacheFigures:
        """What the prefix cache holds and has done, before the next iteration.

        Raises:
            EngineDeadError: The engine has failed or is shutting down.
        """
        return await self._ask(Engine.prefix_cache)

    async def reset_prefix_cache(self, choice: SpaceChoice) -> PrefixCacheReset:
        """Give up what is cached and not in use, before the next iteration; raises likewise.

        Returns once it is gone from the disk, too, where there is one.
        """
        made, gone = await self._ask(lambda engine: engine.reset_prefix_cache(choice))
        if gone is not None:
            await asyncio.to_thread(gone.wait)
        return made

    async def _ask(self, work: Callable[[Engine], T]) -> T:
        """Have something done between two iterations; it is, even if the call is cancelled.

        Raises:
            Exception: What it raises; the engine goes on without it.
            EngineDeadError: The engine has failed or is shutting down.
        """
        asked: Future[T] = Future()
        asked.set_running_or_notify_cancel()

        def do() -> None:
            try:
                done = work(self._engine)
            except Exception as error:
                self._answer(asked, error)
            else:
                self._stats = self._engine.stats()  # who is told of it finds it counted
                self._answer(asked, done)

        with self._guard:
            if self._refusal is not None:
                raise EngineDeadError(self._refusal)
            self._asked.add(asked)
            self._post(do)
        return await asyncio.wrap_future(asked)

    def _answer(self, asked: Future[T], outcome: T | Exception) -> None:
        """Tell whoever waits for something to be done what became of it."""
        with self._guard:
            if asked not in self._asked:
                return
            self._asked.remove(asked)
        if isinstance(outcome, Exception):
            asked.set_exception(outcome)
        else:
            asked.set_result(outcome)

    async def submit(self, request: Request) -> RequestStream:
        """Queue a request. Without a grammar to make, nothing is waited for.

        A call that is cancelled has queued nothing.

        Raises:
            ContextOverflowError, ParameterError, QueueFullError, UnknownAdapterError, ValueError:
                See `Engine.check`.
            ParameterError: What its answer is to be held to can't be enforced.
            EngineDeadError: The engine has failed or is shutting down.
        """
        engine, work = self._engine, request.constrained
        submitted = engine.now()
        with self._guard:  # held for microseconds, and never by the engine's iteration
            self._check_open(request)
            engine.check(request, self._arriving)
            if work is None:
                return self._queue(request, submitted, None)
        grammar = await engine.grammars.compile(work)
        with self._guard:
            self._check_open(request)  # others may have come meanwhile
            engine.check_state(request, self._arriving)
            return self._queue(request, submitted, grammar)

    def _check_open(self, request: Request) -> None:
        if self._refusal is not None:
            raise EngineDeadError(self._refusal)
        if request.request_id in self._mailboxes:
            raise ValueError(f"request id {request.request_id!r} is in use")

    def _queue(self, request: Request, submitted: float, grammar: Grammar | None) -> RequestStream:
        """Bring a checked request on its way to the engine; the guard is held."""
        mailbox = _Mailbox(asyncio.get_running_loop(), request.work.num_sequences)
        self._mailboxes[request.request_id] = mailbox
        self._arriving.add(request)

        def accept() -> None:
            self._engine.accept(request, submitted, grammar)
            with self._guard:
                self._arriving.remove(request)

        self._post(accept)
        return RequestStream(request.request_id, mailbox, self)

    def cancel(
        self,
        request_id: str,
        index: int | None = None,
        reason: FinishReason = FinishReason.CANCELLED,
    ) -> None:
        """End a request, or one of its sequences, before the next iteration.

        The stream still yields the last updates, with `reason`. Unknown or ended ids are ignored:
        the end may have been under way already.
        """
        self._post(lambda: self._engine.cancel(request_id, index, reason))

    async def shutdown(self) -> None:
        """Take no more requests, cancel those there are, and stop. Safe to call twice.

        Who wants answers to be completed reads them first.
        """
        with self._guard:
            if self._refusal is None:
                self._refusal = "The engine is shutting down."
        self._post(self._engine.cancel_all)
        self._stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    def _leave(self, request_id: str) -> None:
        """A stream is read no more: end its request."""
        mailbox = self._mailboxes.get(request_id)
        if mailbox is not None and not mailbox.abandoned:
            mailbox.abandoned = True
            mailbox.updates.clear()
            self.cancel(request_id)

    def _post(self, command: Callable[[], object]) -> None:
        self._inbox.append(command)
        self._wake.set()

    # The engine's thread

    def _main(self) -> None:
        reason = "The engine has shut down."
        try:
            self._serve()
        except BaseException as error:  # the last resort: nobody may wait for ever
            logger.exception("the engine has failed")
            reason = f"The engine has failed: {type(error).__name__}: {error}"
        finally:
            self._end_streams(reason)
            self._engine.close()

    def _serve(self) -> None:
        engine = self._engine
        while True:
            self._rounds += 1
            self._wake.clear()
            while self._inbox:
                self._inbox.popleft()()
            if engine.has_work and engine.idle_seconds() == 0.0:
                updates = engine.step()
                self._stats = engine.stats()  # who is told of an end finds it counted
                self._hand_out(updates)
            elif self._stopping and not engine.has_work and not self._inbox:
                return
            else:
                self._stats = engine.stats()
                engine.rest()
                self._waits = True
                self._wake.wait(engine.idle_seconds())
                self._waits = False

    def _hand_out(self, updates: list[SequenceUpdate]) -> None:
        """Bring an iteration's updates to their event loops, one call for each loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Mailbox, SequenceUpdate]]] = {}
        for update in updates:
            mailbox = self._mailboxes.get(update.request_id)
            if mailbox is not None:
                by_loop.setdefault(mailbox.loop, []).append((mailbox, update))
        for loop, items in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._deliver, items)
            except RuntimeError:  # the loop is closed: nobody is left to read
                for _, update in items:
                    self._leave(update.request_id)
                self._deliver(items)

    def _deliver(self, items: list[tuple[_Mailbox, SequenceUpdate]]) -> None:
        """Fill mailboxes; on the event loop, while there is one."""
        for mailbox, update in items:
            mailbox.put(update)
            if mailbox.open_sequences == 0:
                with self._guard:
                    self._mailboxes.pop(update.request_id, None)

    def _end_streams(self, reason: str) -> None:
        """Let every stream that is still open raise, and take no more requests."""
        with self._guard:
            self._refusal = reason
            orphans = list(self._mailboxes.values())
            self._mailboxes.clear()
            asked = list(self._asked)
        for each in asked:
            self._answer(each, EngineDeadError(reason))
        for mailbox in orphans:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                mailbox.loop.call_soon_threadsafe(mailbox.fail, EngineDeadError(reason))
