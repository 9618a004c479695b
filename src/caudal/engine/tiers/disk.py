"""Pieces on a disk: which there are, how they come and go.

A directory may be shared by processes of the same model and of others: files are named by what is
in them, come by renaming, and are as good as gone when they are deleted, so that nobody needs a
lock but who makes room.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from filelock import FileLock, Timeout

from caudal.backends.executor import Bytes
from caudal.engine.tiers.files import (
    DamagedFileError,
    FileName,
    file_bytes,
    read_piece,
    write_piece,
)
from caudal.engine.tiers.listing import (
    FoundFile,
    files_of,
    home_name,
    homes_in,
    measured_rate,
    space_name,
    spaces_in,
)
from caudal.engine.tiers.pieces import Key, Piece
from caudal.errors import ParameterError

logger = logging.getLogger(__name__)

DEFAULT_SHARE = 2
"""By default the store may take one part in this many of what would be free without it: so it is
as much at the next start, and leaves room to others that need more."""

KEPT_SHARE = 0.9
"""What is left of the limit once room was made: so it isn't made for every file."""

MOMENT_SECONDS = 60.0
"""Times of use aren't told apart more finely. Who uses a node uses those before it, too, which are
so never older: of one moment, what is farthest from the beginning goes first."""

PAUSE_SECONDS = 30.0
"""For so long nothing is written after it couldn't be; nor is it said twice that reading failed."""

_PRIVATE = 0o700


@dataclass(slots=True)
class _Node:
    """What there is of one node, as far as we know.

    Attributes:
        space: The name of the directory that it is in.
        tokens: How many tokens it has.
        end: How many there are up to its end.
        sizes: What the files of its pieces take, by kind.
        used: When they were used last; 0 where only the files' own times say.
        parent: The link of the node before; None where that isn't known.
    """

    space: str
    tokens: int
    end: int
    sizes: dict[int, int] = field(default_factory=dict)
    used: float = 0.0
    parent: bytes | None = None


class DiskTier:
    """Pieces of one fingerprint in a directory. Any thread may ask what there is.

    Args:
        directory: Where they are; it is made if need be.
        fingerprint: See `Executor.fingerprint`.
        limit: Most bytes that the directory may take, with what is of other fingerprints; None:
            half of what would be free without it.

    Attributes:
        directory: Where they are.
        limit: Most bytes that the directory may take.
        written: Pieces written so far.
        written_bytes: What their files take.
        evicted: Files deleted so far to make room.
        failures: Files that couldn't be written, or were damaged, so far.
        rate: Bytes a second at which pieces are read: measured at first, then as it turns out.

    Raises:
        ParameterError: There can be no such directory.
    """

    def __init__(self, directory: Path, fingerprint: bytes, limit: int | None) -> None:
        self.directory = directory
        self._home = directory / home_name(fingerprint)
        try:
            directory.mkdir(_PRIVATE, parents=True, exist_ok=True)
            self._home.mkdir(_PRIVATE, exist_ok=True)
        except OSError as error:
            if not directory.is_dir():
                why = "it is no directory" if directory.exists() else error.strerror
                # Without its path: where others load the model, they read this, too.
                raise ParameterError(
                    "prefix_store", f"What prefix_store names can't be a prefix store: {why}."
                ) from error
            logger.warning("The prefix store %s can only be read: %s.", directory, error.strerror)
        self._guard = threading.Lock()
        self._nodes: dict[bytes, _Node] = {}
        self._tokens: Counter[str] = Counter()
        self._bytes = 0
        self._others_bytes = 0  # of other fingerprints, when last looked
        self._scanned: dict[str, int] = {}
        self._paused_until = -math.inf
        self._unsaid_until = -math.inf
        self.written = 0
        self.written_bytes = 0
        self.evicted = 0
        self.failures = 0
        taken = sum(file.size for file in self._files())
        self.limit = self._limit_of(limit, taken)
        self.rate = measured_rate(self._home)
        if taken > self.limit:
            self._make_room()

    @property
    def size(self) -> int:
        """What all files of this fingerprint take."""
        return self._bytes

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens there are of each space, by `space_name`."""
        with self._guard:
            return dict(self._tokens)

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: Key) -> bool:
        node = self._nodes.get(key[0])
        return node is not None and key[1] in node.sizes

    def scan(self) -> None:
        """Find out what others have written."""
        for space in spaces_in(self._home):
            with contextlib.suppress(OSError):
                if self._has_changed(space):
                    self._note(files_of(space, is_own=True, known=self.__contains__))

    def write(self, piece: Piece, data: Bytes) -> bool:
        """Write a piece, if it isn't there; whatever goes wrong is said in the log.

        Returns:
            Whether it is there.
        """
        if piece.key in self:
            self.touch(piece.link)
            return True
        if time.monotonic() < self._paused_until:
            return False
        space = space_name(piece.first)
        directory = self._home / space
        try:
            try:
                write_piece(directory, piece, data)
            except FileNotFoundError:
                directory.mkdir(_PRIVATE, parents=True, exist_ok=True)
                write_piece(directory, piece, data)
        except OSError as error:
            self._pause(error)
            return False
        size = file_bytes(len(data))
        with self._guard:
            node = self._add(FileName(piece.key, piece.tokens, piece.end), space, size)
            node.used, node.parent = time.time(), piece.parent
        self.written += 1
        self.written_bytes += size
        self.touch(piece.parent)
        if self._bytes + self._others_bytes > self.limit:
            self._make_room()
        return True

    def read(self, key: Key, size: int) -> Bytes | None:
        """A piece's bytes; None where it is gone or can't be read, or is damaged: then its file
        goes, too.

        Args:
            key: What it is found by.
            size: How many bytes it must have.
        """
        node = self._nodes.get(key[0])
        if node is None:
            return None
        path = self._path(key, node)
        began = time.perf_counter()
        try:
            data = read_piece(path, key, size)
            seconds = time.perf_counter() - began
            self.rate = 1 / (0.95 / self.rate + 0.05 * max(seconds, 1e-9) / size)
            return data
        except (FileNotFoundError, NotADirectoryError):  # another process has made room, or so
            pass
        except OSError as error:  # nothing says that the file isn't good
            self.failures += 1
            if time.monotonic() >= self._unsaid_until:
                self._unsaid_until = time.monotonic() + PAUSE_SECONDS
                logger.warning(
                    "Prefixes can't be read from %s: %s. They are computed.",
                    self.directory,
                    error.strerror or error,
                )
        except DamagedFileError as error:
            self.failures += 1
            logger.warning("%s is of no use and is deleted: %s.", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
        with self._guard:
            self._drop(key)
        return None

    def touch(self, link: bytes, chain: Sequence[bytes] = ()) -> None:
        """A node is in use, and so are those before it, without which it is nothing.

        Args:
            link: The node's link.
            chain: All links up to it, where they are known.
        """
        now = time.time()
        for parent, child in pairwise(chain):
            node = self._nodes.get(child)
            if node is not None:
                node.parent = parent
        node = self._nodes.get(link)
        while node is not None and _moment(node.used) < _moment(now):
            node.used = now
            for kind in list(node.sizes):
                with contextlib.suppress(OSError):
                    os.utime(self._path((link, kind), node), (now, now))
            if node.parent is None:
                break
            link = node.parent
            node = self._nodes.get(link)

    def wipe(self, spaces: Sequence[str] | None = None) -> None:
        """Delete what there is of this fingerprint, or of some of its spaces, by `space_name`."""
        with self._guard:
            gone = [
                (link, kind)
                for link, node in self._nodes.items()
                if spaces is None or node.space in spaces
                for kind in node.sizes
            ]
            for key in gone:
                self._drop(key)
            self._scanned.clear()
        for path in spaces_in(self._home):
            if spaces is None or path.name in spaces:
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, key: Key, node: _Node) -> Path:
        return self._home / node.space / str(FileName(key, node.tokens, node.end))

    def _limit_of(self, asked: int | None, taken: int) -> int:
        """Most bytes for all, of which so many are taken: no more than there are."""
        try:
            room = taken + shutil.disk_usage(self.directory).free
        except OSError:
            return taken if asked is None else asked
        if asked is None:
            return room // DEFAULT_SHARE
        if asked > room:  # nothing old would ever go, and nothing new find room
            least = int(room * KEPT_SHARE)
            logger.warning(
                "The prefix store may take %d bytes, but has room for %d: it takes %d at most.",
                *(asked, room, least),
            )
            return least
        return asked

    def _pause(self, error: OSError) -> None:
        """Nothing can be written: say so, and try again later."""
        self.failures += 1
        self._paused_until = time.monotonic() + PAUSE_SECONDS
        logger.warning(
            "Prefixes can't be written to %s: %s. All else goes on. It is tried again in %.0f s.",
            self.directory,
            error.strerror or error,
            PAUSE_SECONDS,
        )

    def _make_room(self) -> None:
        """Delete what was used least recently, of any fingerprint, if there is too much."""
        try:
            with FileLock(self.directory / ".lock", timeout=0, mode=0o600):
                self._delete_oldest()
        except (Timeout, OSError, NotImplementedError):
            return  # another process does, or nobody can

    def _delete_oldest(self) -> None:
        files = self._files()
        total = sum(file.size for file in files)
        if total > self.limit:
            files.sort(key=self._used)
            for file in files:
                if total <= self.limit * KEPT_SHARE:
                    break
                with contextlib.suppress(OSError):
                    Path(file.path).unlink()
                    total -= file.size
                    self.evicted += 1
                    with self._guard:
                        if file.is_own:
                            self._drop(file.name.key)
        self._others_bytes = max(0, total - self._bytes)

    def _files(self) -> list[FoundFile]:
        """All files of pieces, of any fingerprint; what nobody will finish is deleted.

        What is found counts from here on, and what others have deleted doesn't any more: room
        would be made for every file.
        """
        own: list[FoundFile] = []
        others: list[FoundFile] = []
        for home in homes_in(self.directory):
            is_own = home == self._home
            for space in spaces_in(home):
                with contextlib.suppress(OSError):
                    if is_own:
                        self._has_changed(space)
                    (own if is_own else others).extend(files_of(space, is_own=is_own))
        there = {file.name.key for file in own}
        with self._guard:
            gone = [
                (link, kind)
                for link, node in self._nodes.items()
                for kind in node.sizes
                if (link, kind) not in there
            ]
            for key in gone:
                self._drop(key)
        self._note(own)
        self._others_bytes = sum(file.size for file in others)
        return own + others

    def _used(self, file: FoundFile) -> tuple[float, int]:
        """The moment when a file was used last, and how near to the beginning it is."""
        node = self._nodes.get(file.name.key[0]) if file.is_own else None
        used = file.used if node is None else max(file.used, node.used)
        return (_moment(used), -file.name.end)

    def _has_changed(self, space: Path) -> bool:
        """Whether a directory of ours has changed since this was asked; it is looked at next."""
        changed = space.stat().st_mtime_ns
        if self._scanned.get(space.name) == changed:
            return False
        self._scanned[space.name] = changed
        return True

    def _note(self, files: Iterable[FoundFile]) -> None:
        for file in files:
            with self._guard:
                if file.name.key not in self:
                    self._add(file.name, file.space, file.size)

    def _add(self, name: FileName, space: str, size: int) -> _Node:
        link, kind = name.key
        node = self._nodes.setdefault(link, _Node(space, name.tokens, name.end))
        node.sizes[kind] = size
        self._bytes += size
        if kind == 0:
            self._tokens[space] += name.tokens
        return node

    def _drop(self, key: Key) -> None:
        link, kind = key
        node = self._nodes.get(link)
        if node is None or kind not in node.sizes:
            return
        self._bytes -= node.sizes.pop(kind)
        if kind == 0:
            self._tokens[node.space] -= node.tokens
            if not self._tokens[node.space]:
                del self._tokens[node.space]
        if not node.sizes:
            del self._nodes[link]


def _moment(seconds: float) -> float:
    return seconds // MOMENT_SECONDS
