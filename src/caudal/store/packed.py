"""Packed weights, kept on the disk so that starting a model needn't pack them again.

One file holds all of a model's matrices as a backend computes with them: made from its files alone,
it can be deleted at any time, and is made again. Its name is a hash of what the model's files are
and of what the backend says of layout and contents, so that one which doesn't fit isn't found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from caudal.errors import StoreError
from caudal.store.disk import exclusive_lock
from caudal.store.packed_file import (
    FORMAT_VERSION,
    PACKED,
    UNFINISHED,
    PackedFile,
    PackedHeader,
    PackedWriter,
    Source,
    explained_refusals,
    read_header,
)


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """A file of packed weights, for whoever wants to know what takes the disk.

    Attributes:
        path: The file.
        model: The model's name when it was written.
        sources: The model's files.
        size: Its bytes.
        used: When it was last used.
        is_stale: Whether it can't be used any more: the model's files are gone, or others.
    """

    path: Path
    model: str
    sources: tuple[Source, ...]
    size: int
    used: datetime
    is_stale: bool


class PackedFiles:
    """Files of packed weights, all in one directory.

    Processes share it. Whoever writes or deletes holds a lock; those who read need none.

    Args:
        directory: Where they are; made when the first is written.
        limit: Most bytes of all of them together; None: half of what is free on the disk.
    """

    def __init__(self, directory: Path, limit: int | None = None) -> None:
        self._directory = directory
        self._limit = limit

    def of_model(self, name: str, sources: Sequence[Source]) -> PackedModel:
        """Those of one model."""
        return PackedModel(self, name, tuple(sources))

    def entries(self) -> list[PackedEntry]:
        """All that there are, the least recently used first."""
        entries = []
        for path in self._directory.glob(f"*{PACKED}"):
            try:
                status = path.stat()
                with path.open("rb", buffering=0) as file:
                    header = read_header(file.fileno())
            except OSError:
                continue
            model, sources = ("", ()) if header is None else (header.model, header.sources)
            entries.append(
                PackedEntry(
                    path,
                    model,
                    sources,
                    status.st_size,
                    datetime.fromtimestamp(status.st_mtime).astimezone(),
                    not sources or not all(source.is_as_it_was for source in sources),
                )
            )
        return sorted(entries, key=lambda entry: entry.used)

    def remove(self, wanted: Callable[[PackedEntry], bool]) -> list[PackedEntry]:
        """Delete some, and whatever a process that was killed has left unfinished.

        A process that has one mapped goes on with it.

        Args:
            wanted: Whether a file is to go.

        Returns:
            What was deleted.

        Raises:
            StoreError: It can't be deleted.
        """
        if not self._directory.is_dir():
            return []
        with self._locked(lambda: None):
            return self._remove(wanted)

    def find(self, key: str) -> PackedFile | None:
        """The file of a name; None where there is none, or it is damaged: then it is deleted."""
        return PackedFile.open(self._directory / f"{key}{PACKED}", key)

    @contextlib.contextmanager
    def writing(
        self, header: PackedHeader, *, needed: bool, waiting: Callable[[], None]
    ) -> Iterator[PackedWriter]:
        """Begin a file. It is gone at the end unless `PackedWriter.finish` was called.

        Args:
            header: What it will say, but for the sums.
            needed: Whether the model can't run without: then the disk may be filled.
            waiting: Called once if somebody else is writing.

        Raises:
            StoreError: There is no space, or no right to write.
        """
        path = self._directory / f"{header.key}{UNFINISHED}"
        with explained_refusals(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            with self._locked(waiting):
                self._make_room(header, needed=needed)
                descriptor = os.open(
                    path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
                )
                try:
                    writer = PackedWriter(path, descriptor, header)
                    # All at once: a full disk is noticed now, and the file lies in few pieces.
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(descriptor, writer.offset, header.image_bytes)
                    yield writer
                finally:
                    os.close(descriptor)
                    path.unlink(missing_ok=True)

    def _make_room(self, header: PackedHeader, *, needed: bool) -> None:
        """Delete what is of no use any more and, for a limit, what wasn't used for long."""
        sources = set(header.sources)
        self._remove(lambda entry: entry.is_stale or bool(sources.intersection(entry.sources)))
        size = header.image_bytes
        free = shutil.disk_usage(self._directory).free
        most = free if needed else free // 2
        limit = "half of what is free on the disk"
        if self._limit is not None:
            entries = self.entries()
            over = sum(entry.size for entry in entries) + size - self._limit
            gone = set()
            for entry in entries if size <= self._limit else ():
                if over > 0:
                    gone.add(entry.path)
                    over -= entry.size
            self._remove(lambda entry: entry.path in gone)
            most, limit = min(free, self._limit), "the limit for packed weights"
        if size > most:
            raise StoreError(
                f"they take {size / 1e9:.1f} GB, but {limit} is {most / 1e9:.1f} GB in "
                f"{self._directory}"
            )

    def _remove(self, wanted: Callable[[PackedEntry], bool]) -> list[PackedEntry]:
        removed = [entry for entry in self.entries() if wanted(entry)]
        unfinished = list(self._directory.glob(f"*{UNFINISHED}"))  # nobody else has the lock
        with explained_refusals(self._directory):
            for path in [entry.path for entry in removed] + unfinished:
                path.unlink(missing_ok=True)
        return removed

    @contextlib.contextmanager
    def _locked(self, waiting: Callable[[], None]) -> Iterator[None]:
        with explained_refusals(self._directory), exclusive_lock(self._directory / "lock", waiting):
            yield


class PackedModel:
    """Where the packed weights of one model may be kept.

    Args:
        files: Those of all models.
        name: The model's name.
        sources: Its files.
    """

    def __init__(self, files: PackedFiles, name: str, sources: tuple[Source, ...]) -> None:
        self._files = files
        self._name = name
        self._sources = sources

    def find(self, contents: str) -> PackedFile | None:
        """The model's packed weights, if they are there.

        Args:
            contents: What the backend says of their layout, and of what is in them.
        """
        return self._files.find(self._key(contents))

    def writing(
        self,
        contents: str,
        image_bytes: int,
        num_checksums: int,
        *,
        needed: bool,
        waiting: Callable[[], None],
    ) -> contextlib.AbstractContextManager[PackedWriter]:
        """Begin to write them; see `PackedFiles.writing`."""
        header = PackedHeader(
            key=self._key(contents),
            model=self._name,
            sources=self._sources,
            image_bytes=image_bytes,
            checksums=bytes(8 * num_checksums),
        )
        return self._files.writing(header, needed=needed, waiting=waiting)

    def _key(self, contents: str) -> str:
        parts = [str(FORMAT_VERSION), *(source.identity for source in self._sources), contents]
        return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:32]
