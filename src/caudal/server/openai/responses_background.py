"""Responses that go on without their client, who looks in on them or comes back to their events."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from copy import copy
from functools import partial

from caudal.errors import CaudalError, QueueFullError
from caudal.server.encoding import encode_json
from caudal.server.json_bounds import memory_of
from caudal.server.openai.responses_output import Event, ResponseWriter
from caudal.tenants.rules import ANYONE

logger = logging.getLogger("caudal.server")

MAX_RUNNING = 256
"""Most responses that run in the background; the engine's queue bounds those with a client."""

MAX_BYTES = 256 * 2**20
"""Most memory that responses in the background may take, with their events, to begin one more."""

RETRY_SECONDS = 10
"""When a client is told to come back where there are as many."""

MAX_REMEMBERED = 64
"""Responses that have ended and whose events can still be streamed: the latest."""


class BackgroundRun:
    """One response, written whether anybody reads it or not.

    Args:
        writer: Writes it.
        events: What it makes of the model's answer, as it comes.
        close: Gives up the work behind them. Called in any case.
        keep: Stores the response once it has ended.

    Attributes:
        writer: Writes it.
        size: Bytes of memory that its events take, about.
    """

    def __init__(
        self,
        writer: ResponseWriter,
        events: AsyncGenerator[Event, None],
        close: Callable[[], Awaitable[None]],
        keep: Callable[[], None],
    ) -> None:
        self.writer = writer
        self.size = _size(writer.response())
        self._close = close
        self._keep = keep
        self._events: list[Event] = []
        self._changed = asyncio.Event()
        self._ended = False
        self._task = asyncio.ensure_future(self._run(events))

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to come."""
        return self._ended

    async def cancel(self) -> None:
        """End it now, with what there is."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def events_after(self, number: int) -> AsyncIterator[Event]:
        """The events with higher numbers, those to come included."""
        place = max(number + 1, 0)
        while True:
            while place < len(self._events):
                yield self._events[place]
                place += 1
            if self._ended:
                return
            changed = self._changed
            await changed.wait()

    def _add(self, event: Event) -> None:
        self._events.append(event)
        if "response" not in event:  # which all such events share
            self.size += _size(event)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _run(self, events: AsyncGenerator[Event, None]) -> None:
        writer = self.writer
        try:
            for event in writer.start():
                self._add(event)
            async for event in events:
                self._add(event)
            ending = writer.finish
        except asyncio.CancelledError:
            ending = writer.cancel
        except CaudalError as error:
            ending = partial(writer.fail, str(error))
        except Exception:
            logger.exception("A response in the background failed.")
            ending = partial(writer.fail, "Internal server error.")
        finally:
            await events.aclose()
            await self._close()
        last = ending()
        self._keep()
        self._ended = True
        self._add(last)


class BackgroundRuns:
    """All responses in the background, of one application. For one thread.

    Args:
        max_bytes: Most memory that they may take to begin one more.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._runs: OrderedDict[tuple[str, str], BackgroundRun] = OrderedDict()  # oldest first
        self._owner = ANYONE.id

    def of(self, owner: str) -> BackgroundRuns:
        """The same runs, as one tenant sees them: its own, in the room of all."""
        runs = copy(self)
        runs._owner = owner
        return runs

    def check_room(self) -> None:
        """Forget what has ended, as far as there is no room for it.

        Raises:
            QueueFullError: There is none even so.
        """
        ended = [identity for identity, run in self._runs.items() if run.ended]
        size = sum(run.size for run in self._runs.values())
        while ended and (size > self._max_bytes or len(ended) > MAX_REMEMBERED):
            size -= self._runs.pop(ended.pop(0)).size
        running = len(self._runs) - len(ended)
        if running >= MAX_RUNNING or size > self._max_bytes:
            raise QueueFullError(
                running, RETRY_SECONDS, "The background", limit="max_background_responses"
            )

    def add(self, run: BackgroundRun) -> None:
        """Keep a run that has begun."""
        self._runs[self._owner, run.writer.identity] = run

    def get(self, identity: str) -> BackgroundRun | None:
        """The run of a response, where it is remembered."""
        return self._runs.get((self._owner, identity))

    async def forget(self, identity: str) -> bool:
        """End and forget a run; returns whether there was one."""
        run = self._runs.pop((self._owner, identity), None)
        if run is None:
            return False
        await run.cancel()
        return True


def _size(value: object) -> int:
    return memory_of(encode_json(value))
