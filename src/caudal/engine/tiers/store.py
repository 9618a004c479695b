"""All tiers behind the pools as one thing that pieces are put into and fetched from.

What the engine's thread calls takes microseconds: a thread reads, and another writes, at a low
priority. Both can be left out, for tests that do their work step by step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from caudal.backends.executor import Bytes
from caudal.engine.config import AHEAD_BYTES, STAGING_BYTES
from caudal.engine.tiers.disk import DiskTier
from caudal.engine.tiers.host import HostTier
from caudal.engine.tiers.listing import space_name
from caudal.engine.tiers.pieces import Key, Piece

logger = logging.getLogger(__name__)

SCAN_SECONDS = 30.0
"""So often what other processes have written is looked for."""

_LOW_PRIORITY = 10


@dataclass(frozen=True, slots=True)
class Source:
    """Where a piece is read from.

    Attributes:
        key: What it is found by.
        size: Its bytes.
        data: They themselves, where they are in memory.
    """

    key: Key
    size: int
    data: Bytes | None


@dataclass(eq=False, slots=True)
class Fetch:
    """Pieces that are being read, in their order.

    Attributes:
        sources: Where from.
        chain: All links up to the last of them.
        arrived: The bytes of those that have been read; None for one that couldn't be, which is
            the last.
        cancelled: Nobody wants them any more.
        read: How many have been read.
        ahead: How many may still be read before some are taken.
    """

    sources: Sequence[Source]
    chain: Sequence[bytes]
    ahead: threading.Semaphore
    arrived: deque[Bytes | None] = field(default_factory=deque)
    cancelled: bool = False
    read: int = 0

    def take(self) -> Bytes | None:
        """The next that has arrived.

        Raises:
            IndexError: None has.
        """
        data = self.arrived.popleft()
        self.ahead.release()
        return data


class PieceStore:
    """Pieces beyond the pools. All but what is said otherwise is for one thread, the engine's.

    Args:
        memory: Bytes of memory for pieces that are to stay there.
        disk: Where the others go; None: nowhere.
        block_bytes: Bytes of a piece of each kind.
        threads: Read and write in threads; otherwise `read_one` and `write_one` are called.

    Attributes:
        disk: Where pieces go that don't stay in memory; None: nowhere.
        block_bytes: Bytes of a piece of each kind.
        keeps: Whether any stay in memory.
    """

    def __init__(
        self,
        memory: int,
        disk: DiskTier | None,
        block_bytes: Sequence[int],
        *,
        threads: bool = True,
    ) -> None:
        self.disk = disk
        self.block_bytes = block_bytes
        staging = 0 if disk is None else max(STAGING_BYTES, 2 * sum(block_bytes))
        self._host = HostTier(memory, staging)
        self.keeps = memory > 0
        self._guard = threading.Condition()
        self._fetches: deque[Fetch] = deque()
        self._wipes: deque[tuple[Sequence[str] | None, threading.Event]] = deque()
        self._stopping = False
        self._threads: list[threading.Thread] = []
        if threads:
            loops = {"read": self._read_all, "write": self._write_all}
            for name, loop in loops.items():
                if name == "read" or disk is not None:
                    thread = threading.Thread(
                        target=loop, name=f"caudal-prefix-{name}", daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()

    def __contains__(self, key: Key) -> bool:
        return key in self._host or (self.disk is not None and key in self.disk)

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be found."""
        return not len(self._host) and (self.disk is None or not len(self.disk))

    @property
    def memory_bytes(self) -> int:
        """What is in memory."""
        return self._host.bytes

    @property
    def memory_tokens(self) -> dict[bytes, int]:
        """Tokens in memory of each space, by its first link."""
        with self._guard:
            return dict(self._host.tokens)

    def take(self, size: int) -> Bytes | None:
        """Memory for a piece's bytes; None where there is none before something is written."""
        with self._guard:
            return self._host.take(size)

    def put(self, piece: Piece, data: Bytes) -> None:
        """Keep a piece, whose bytes are in memory from `take`."""
        with self._guard:
            dirty = self.disk is not None and piece.key not in self.disk
            self._host.put(piece, data, dirty=dirty)
            if dirty:
                self._guard.notify_all()

    def read_seconds(self, keys: Sequence[Key]) -> float:
        """How long it is likely to take to read pieces, behind those that are asked for already."""
        disk = self.disk
        if disk is None:
            return 0.0
        with self._guard:
            waiting = [
                source.size
                for fetch in self._fetches
                for source in fetch.sources[fetch.read :]
                if source.data is None
            ]
        wanted = [self.block_bytes[key[1]] for key in keys if key not in self._host]
        return (sum(waiting) + sum(wanted)) / disk.rate

    def fetch(self, keys: Sequence[Key], chain: Sequence[bytes]) -> Fetch | None:
        """Begin to read pieces; None where one is gone.

        Args:
            keys: What they are found by.
            chain: All links up to the last of them.
        """
        sources = []
        with self._guard:
            for key in keys:
                data = self._host.get(key)
                if data is None and (self.disk is None or key not in self.disk):
                    return None
                sources.append(Source(key, self.block_bytes[key[1]], data))
        largest = max(self.block_bytes)
        return Fetch(sources, chain, threading.Semaphore(max(4, AHEAD_BYTES // largest)))

    def start(self, fetch: Fetch) -> None:
        """Let a fetch be read."""
        with self._guard:
            self._fetches.append(fetch)
            self._guard.notify_all()

    def read_one(self) -> bool:
        """Read one piece; returns whether there was any to read."""
        with self._guard:
            while self._fetches and self._fetches[0].cancelled:
                self._fetches.popleft()
            if not self._fetches:
                return False
            fetch = self._fetches[0]
        if not fetch.ahead.acquire(timeout=0.05):
            return True
        source = fetch.sources[fetch.read]
        data = source.data
        if data is None and self.disk is not None:
            data = self.disk.read(source.key, source.size)
        fetch.read += 1
        is_last = data is None or fetch.read == len(fetch.sources)
        fetch.arrived.append(data)
        if is_last:
            if self.disk is not None and data is not None:
                self.disk.touch(fetch.chain[-1], fetch.chain)
            with self._guard:
                self._fetches.remove(fetch)
        return True

    def write_one(self) -> bool:
        """Write one piece, or delete what is to be; returns whether there was any."""
        disk = self.disk
        if disk is None:
            return False
        with self._guard:
            wipe = self._wipes.popleft() if self._wipes else None
            dirty = self._host.next_dirty()
        if wipe is not None:
            spaces, done = wipe
            try:
                disk.wipe(spaces)
            finally:
                done.set()
            return True
        if dirty is None:
            return False
        piece, data = dirty
        try:
            disk.write(piece, data)
        finally:  # where it can't be written, it isn't tried again
            with self._guard:
                self._host.clean(piece.key)
        return True

    def wipe(self, firsts: Sequence[bytes] | None) -> threading.Event:
        """Forget all, or what is of some spaces, by their first links.

        Returns:
            Set once it is gone from the disk, too.
        """
        done = threading.Event()
        with self._guard:
            self._host.wipe(firsts)
            if self.disk is None or self._stopping:
                done.set()
            else:
                spaces = None if firsts is None else list(map(space_name, firsts))
                self._wipes.append((spaces, done))
                self._guard.notify_all()
        return done

    def flush(self, deadline: float) -> None:
        """Wait until all that was put is written, or until a moment of the monotonic clock."""
        while self._host.has_dirty and time.monotonic() < deadline:
            if not self._threads:
                self.write_one()
            else:
                time.sleep(0.002)

    def close(self, deadline: float) -> None:
        """End the threads; what isn't written yet is lost. Safe to call twice.

        Args:
            deadline: A moment of the monotonic clock, when what the disk is still busy with isn't
                waited for any longer: it may hang.
        """
        with self._guard:
            self._stopping = True
            for fetch in self._fetches:
                fetch.cancelled = True
            self._guard.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for _, done in self._wipes:
            done.set()

    def _read_all(self) -> None:
        while not self._stopping:
            try:
                if not self.read_one():
                    with self._guard:
                        self._guard.wait_for(lambda: self._stopping or bool(self._fetches))
            except Exception:
                logger.exception("a prefix couldn't be read")
                with self._guard:
                    failed = self._fetches.popleft()
                failed.arrived.append(None)

    def _write_all(self) -> None:
        if hasattr(os, "sched_getaffinity"):  # Linux, where threads have priorities of their own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
        while not self._stopping:
            try:
                if not self.write_one():
                    with self._guard:
                        came = self._guard.wait_for(self._has_to_write, SCAN_SECONDS)
                    if not came and self.disk is not None:
                        self.disk.scan()
            except Exception:
                logger.exception("a prefix couldn't be written")
                time.sleep(1)

    def _has_to_write(self) -> bool:
        return self._stopping or self._host.has_dirty or bool(self._wipes)
