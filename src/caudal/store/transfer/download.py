"""Fetching what is missing of a file, several ranges at once."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import httpx2

from caudal.errors import StoreError
from caudal.store.transfer.partial import PartialFile
from caudal.store.transfer.ranges import Range
from caudal.store.transfer.retries import Patience, TransientError, check_transient

PART_BYTES = 32 << 20
"""Asked for at a time: small enough that slow and fast connections end together."""
CONNECTIONS = 8
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class RefusedContentError(StoreError):
    """A server sends something else than it said: nothing of it can be trusted."""


class RangeSource(Protocol):
    """Where a file comes from."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def open(self, wanted: Range) -> AbstractAsyncContextManager[httpx2.Response]:
        """Ask for a range; the status is checked by who asked.

        Raises:
            StoreError: It won't be given, whoever asks again.
            TransientError: It may be given later.
        """


class Download:
    """One file's.

    Args:
        source: Where it comes from.
        partial: Where it goes; what is there already isn't asked for.
        connections: How many more answers there may be at once, shared with other files.
        tell: Called with the reason when something is tried again.
    """

    def __init__(
        self,
        source: RangeSource,
        partial: PartialFile,
        connections: asyncio.Semaphore,
        tell: Callable[[str], None],
    ) -> None:
        self._source = source
        self._partial = partial
        self._connections = connections
        self._tell = tell
        self._waiting: deque[Range] = deque()
        self._in_order = False

    async def run(self) -> None:
        """Fetch what is missing.

        Raises:
            RefusedContentError: The server sends something else than it said.
            StoreError: It refuses, or fails too often; what was received stays.
            OSError: The disk is full, or fails.
        """
        try:
            self._plan()
            if self._waiting:
                # Whether the server knows ranges shows in its first answer.
                await self._fetch(self._waiting.popleft())
            async with asyncio.TaskGroup() as group:
                for _ in range(min(CONNECTIONS, len(self._waiting))):
                    group.create_task(self._work())
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        finally:
            self._partial.save()

    def _plan(self) -> None:
        self._waiting.extend(self._partial.there.missing(self._partial.size, PART_BYTES))

    async def _work(self) -> None:
        while self._waiting:
            await self._fetch(self._waiting.popleft())

    async def _fetch(self, wanted: Range) -> None:
        """Fetch one range, however often that must be tried."""
        start, end = wanted
        patience = Patience(self._tell)
        patience.has_progressed()  # the server has been reached, or nobody would know the size
        while start < end and not self._partial.is_complete:
            before = start
            try:
                async with self._connections, self._source.open((start, end)) as response:
                    start = self._begin(response, start, end)
                    if self._in_order:
                        end = self._partial.size
                    async for chunk in response.aiter_raw():
                        if len(chunk) > end - start:
                            raise self._refused(f"sent more than {self._partial.size} bytes")
                        self._partial.write(start, chunk)
                        start += len(chunk)
                if start < end:
                    raise TransientError(f"the connection closed {end - start} bytes too early")
            except (TransientError, httpx2.TransportError) as error:
                if start > before:
                    patience.has_progressed()
                await patience.after(error, f"downloading {self._source.name}")
        if self._in_order:
            self._waiting.clear()

    def _begin(self, response: httpx2.Response, start: int, end: int) -> int:
        """Where the answer begins."""
        size = self._partial.size
        status = response.status_code
        if status == 206:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None:
                raise self._refused("sent a part without saying which")
            if match[3] not in ("*", str(size)):
                raise self._refused(f"has {match[3]} bytes of it instead of {size}")
            if (int(match[1]), int(match[2])) != (start, end - 1):
                raise TransientError("the server sent another part than it was asked for")
            return start
        if status == 200:
            length = response.headers.get("Content-Length", "")
            if length.isdecimal() and int(length) != size:
                raise self._refused(f"has {length} bytes of it instead of {size}")
            if (start, end) != (0, size):
                # It doesn't know ranges, or has forgotten: all of it comes in order.
                self._in_order = True
            return 0
        check_transient(response)
        if status == 416:
            raise self._refused(f"has less than {size} bytes of it")
        reason = f"{status} {response.reason_phrase}".strip()
        raise StoreError(f"{self._source.name} can't be fetched: the server answered {reason}")

    def _refused(self, what: str) -> RefusedContentError:
        return RefusedContentError(
            f"{self._source.name} was refused and thrown away: the server {what}"
        )


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first; what the others were ended with says nothing."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def bounded_body(response: httpx2.Response, most: int) -> bytes:
    """A body that mustn't be longer than so many bytes.

    Raises:
        RefusedContentError: It is.
    """
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > most:
            raise RefusedContentError(
                f"{response.url.host} sent more than {most} bytes where it was asked for less"
            )
    return bytes(content)
