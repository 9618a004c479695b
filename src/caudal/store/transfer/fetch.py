"""Files on their way into a store: fetched, compared with their hash, and told of meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from caudal.store.incoming import WrongDigestError
from caudal.store.progress import ProgressCallback, PullProgress, PullStage
from caudal.store.transfer.download import (
    CONNECTIONS,
    Download,
    RangeSource,
    RefusedContentError,
    first_of,
)
from caudal.store.transfer.partial import PartialFile, count_there, forget_partial
from caudal.store.transfer.watched import TICK_SECONDS, watched

_FILES_AT_ONCE = 4
_TICKS_BETWEEN_NOTES = 3
"""So much is lost by a kill."""


class Fetch:
    """One file.

    Args:
        source: Where it comes from.
        path: Where it grows.
        size: Its bytes.
        digest: `sha256:HEX`; empty where nobody has said it.
        etag: What the server calls its content, where the digest isn't known.
        item: What people know it by.
        whole: Whether it has come some other way: by another thread or process. It is called in
            another thread, and given what to call with the number of bytes that it has checked.
        keep: Checks the file and takes it from where it has grown; in another thread. It is given
            what to call with the number of bytes that it has checked.
    """

    def __init__(
        self,
        source: RangeSource,
        path: Path,
        size: int,
        *,
        item: str,
        whole: Callable[[Callable[[int], None]], bool],
        keep: Callable[[Path, Callable[[int], None]], object],
        digest: str = "",
        etag: str = "",
    ) -> None:
        self.source = source
        self.path = path
        self.size = size
        self.digest = digest
        self.etag = etag
        self.item = item
        self.whole = whole
        self.keep = keep
        self.stage = PullStage.DOWNLOADING
        self.completed = count_there(path, size)

    def event(self, stage: PullStage | None = None, detail: str = "") -> PullProgress:
        """How far it is."""
        return PullProgress(
            stage or self.stage, self.item, self.completed, self.size, detail, self.digest
        )

    @property
    def lock_path(self) -> Path:
        """Locked by whoever fetches it."""
        return self.path.with_name(f"{self.path.name}.lock")

    def clear(self) -> None:
        """Once it is whole: delete what another attempt has left.

        Whoever waits for the lock, or makes a new one, sees that it is whole.
        """
        forget_partial(self.path)
        self.lock_path.unlink(missing_ok=True)


class Fetches:
    """Files that are fetched together.

    Args:
        fetches: Which.
        progress: Told how far each is.
    """

    def __init__(self, fetches: Sequence[Fetch], progress: ProgressCallback) -> None:
        self._fetches = fetches
        self._progress = progress
        self._connections = asyncio.Semaphore(CONNECTIONS)
        self._at_once = asyncio.Semaphore(_FILES_AT_ONCE)
        self._growing: dict[Fetch, PartialFile] = {}
        self._told: dict[Fetch, tuple[PullStage, int]] = {}
        self._stopped = threading.Event()
        self._ticks = 0

    async def run(self) -> None:
        """Fetch them all.

        Raises:
            StoreError: One can't be had, or isn't what it is said to be.
            OSError: The disk is full, or fails; what was received stays.
        """
        try:
            await watched(self._run_all(), self._tick)
        finally:
            self._stopped.set()

    async def _run_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for fetch in self._fetches:
                    group.create_task(self._run(fetch))
        except BaseExceptionGroup as error:
            raise first_of(error) from None

    async def _run(self, fetch: Fetch) -> None:
        lock = FileLock(fetch.lock_path)
        async with self._at_once:
            await self._wait_for(lock, fetch)
            try:
                if not await asyncio.to_thread(fetch.whole, self._counter(fetch)):
                    await self._fetch(fetch)
                fetch.clear()
            finally:
                lock.release()
        fetch.stage, fetch.completed = PullStage.DOWNLOADING, fetch.size

    async def _wait_for(self, lock: FileLock, fetch: Fetch) -> None:
        """Until nobody else fetches it; how far they are is shown."""
        while True:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                fetch.stage = PullStage.WAITING
                fetch.completed = count_there(fetch.path, fetch.size)
                await asyncio.sleep(TICK_SECONDS)
            else:
                return

    async def _fetch(self, fetch: Fetch) -> None:
        def retrying(reason: str) -> None:
            self._progress(fetch.event(PullStage.RETRYING, reason))

        while True:
            resumed = await self._download(fetch, retrying)
            fetch.stage, fetch.completed = PullStage.VERIFYING, 0
            try:
                await asyncio.to_thread(fetch.keep, fetch.path, self._counter(fetch))
            except (RefusedContentError, WrongDigestError) as error:
                forget_partial(fetch.path)
                if not resumed and isinstance(error, WrongDigestError):
                    raise RefusedContentError(
                        f"{fetch.source.name} isn't what it is said to be and was discarded: "
                        f"{error.reason}"
                    ) from error
                if not resumed:
                    raise
                retrying("what was there already has another content; starting over")
            else:
                return

    async def _download(self, fetch: Fetch, retrying: Callable[[str], None]) -> bool:
        """Fetch what is missing; returns whether something was there already."""
        fetch.stage = PullStage.DOWNLOADING
        with PartialFile(fetch.path, fetch.size, fetch.etag) as partial:
            self._growing[fetch] = partial
            try:
                await Download(fetch.source, partial, self._connections, retrying).run()
            except RefusedContentError:
                partial.discard()
                raise
            finally:
                del self._growing[fetch]
                if fetch.size and not partial.there.count:
                    partial.discard()
            return partial.resumed

    def _counter(self, fetch: Fetch) -> Callable[[int], None]:
        def count(completed: int) -> None:
            if self._stopped.is_set():
                raise InterruptedError
            fetch.completed = completed

        return count

    def _tick(self) -> None:
        """Tell what has changed; and something, so that whoever listens can end it."""
        self._ticks += 1
        for fetch, partial in self._growing.items():
            if self._ticks % _TICKS_BETWEEN_NOTES == 0:
                partial.save()
            if fetch.stage is PullStage.DOWNLOADING:
                fetch.completed = partial.there.count
        changed = [
            fetch
            for fetch in self._fetches
            if self._told.get(fetch) != (fetch.stage, fetch.completed)
        ]
        for fetch in changed or self._fetches[:1]:
            self._told[fetch] = (fetch.stage, fetch.completed)
            self._progress(fetch.event())
