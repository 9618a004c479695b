"""The files that clients send, and those that batches write: on the disk, as long as they last."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from caudal.batches.disk import private_directory, told_when_full
from caudal.batches.errors import NoRoomError, UnknownFileError
from caudal.store.disk import write_atomically

logger = logging.getLogger("caudal.batches")

MAX_FILES = 10_000

DAY = 24 * 3600
KEPT_SECONDS = 30 * DAY
"""How long files last that nobody says otherwise of, as at OpenAI."""

_BUFFERED = 2**18

_ID = re.compile(r"file-[0-9a-f]{32}", re.ASCII)


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file.

    Attributes:
        id: What it is called by clients.
        tenant: Whose it is; None where nobody is told apart.
        filename: What its sender calls it.
        purpose: What it is for.
        size: Bytes.
        created: When it was made, Unix time in seconds.
        expires: When it goes; None: when somebody deletes it.
    """

    id: str
    tenant: str | None
    filename: str
    purpose: str
    size: int
    created: float
    expires: float | None

    def described(self) -> dict[str, Any]:
        """The file as OpenAI's API gives it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": int(self.created),
            "expires_at": None if self.expires is None else int(self.expires),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def new_file_id() -> str:
    """What a file that is to be made will be called."""
    return f"file-{uuid.uuid4().hex}"


class Incoming:
    """A file that is being written. For one thread at a time.

    Attributes:
        size: Bytes so far.
    """

    def __init__(self, store: FileStore, descriptor: int, path: Path) -> None:
        self._store = store
        self._descriptor = descriptor
        self._path = path
        self._buffer = bytearray()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Append.

        Raises:
            NoRoomError: There is no room for it.
            OSError: It can't be written.
        """
        self._store.take_room(len(data))
        self.size += len(data)
        self._buffer += data
        if len(self._buffer) >= _BUFFERED:
            self._flush()
        return len(data)

    def keep(
        self,
        *,
        tenant: str | None,
        filename: str,
        purpose: str,
        seconds: float | None = KEPT_SECONDS,
        identity: str | None = None,
    ) -> StoredFile:
        """It is whole: keep it.

        Args:
            tenant: Whose it is.
            filename: What it is called.
            purpose: What it is for.
            seconds: How long it lasts; None for ever.
            identity: What it is called by clients; None for something new.

        Raises:
            NoRoomError, OSError: It can't be kept.
        """
        with told_when_full():
            self._flush()
            os.fsync(self._descriptor)
            now = time.time()
            kept = StoredFile(
                id=identity or new_file_id(),
                tenant=tenant,
                filename=filename,
                purpose=purpose,
                size=self.size,
                created=now,
                expires=None if seconds is None else now + seconds,
            )
            self._store.add(kept, self._path)
        return kept

    def _flush(self) -> None:
        with told_when_full(), memoryview(self._buffer) as view:
            written = 0
            while written < len(view):
                written += os.write(self._descriptor, view[written:])
        self._buffer.clear()


class FileStore:
    """The files in a directory. For any thread.

    `ID.json` says what a file is and `ID.data` is the file; it is there from when the former is.

    Args:
        directory: Where they are. Made with the first file.
        max_bytes: Of all of them together, those that are being written included.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._files: dict[str, StoredFile] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Of all of them together."""
        return self._bytes

    def load(self) -> None:
        """Find out what is there, and clear away what was never whole. For one process at a time.

        Raises:
            OSError: The directory can't be read.
        """
        if not self._directory.is_dir():
            return
        found, names = {}, set[str]()
        for path in self._directory.glob("*.json"):
            names.add(path.stem)
            try:
                stored = msgspec.json.decode(path.read_bytes(), type=StoredFile)
            except (OSError, msgspec.MsgspecError) as error:
                logger.error("%s can't be read, and is left as it is: %s", path.stem, error)
                continue
            if stored.id == path.stem and self._path(stored.id).is_file():
                found[stored.id] = stored
        for path in self._directory.iterdir():
            if path.stem not in names and path.suffix in (".data", ".part", ".new"):
                path.unlink(missing_ok=True)
        with self._lock:
            self._files = dict(sorted(found.items(), key=lambda each: each[1].created))
            self._bytes = sum(each.size for each in found.values())
        self.sweep()

    @contextmanager
    def incoming(self) -> Iterator[Incoming]:
        """Write a file; what isn't kept by the end leaves nothing.

        Raises:
            NoRoomError: There are too many.
            OSError: It can't be written.
        """
        with self._lock:
            if len(self._files) >= MAX_FILES:
                raise NoRoomError(
                    f"The server keeps {MAX_FILES} files already. Delete some.", "max_files"
                )
        private_directory(self._directory)
        path = self._directory / f"{uuid.uuid4().hex}.part"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        writing = Incoming(self, descriptor, path)
        try:
            yield writing
        finally:
            os.close(descriptor)
            if path.exists():
                path.unlink()
                self.take_room(-writing.size)

    def get(self, identity: str, tenant: str | None) -> StoredFile:
        """Find a file; raises `UnknownFileError`, where it is another's too."""
        with self._lock:
            found = self._files.get(identity)
        if found is None or found.tenant != tenant or _is_over(found):
            raise UnknownFileError(identity)
        return found

    def has(self, identity: str, tenant: str | None) -> bool:
        """Whether there is such a file."""
        try:
            self.get(identity, tenant)
        except UnknownFileError:
            return False
        return True

    def all(self, tenant: str | None, purpose: str | None = None) -> list[StoredFile]:
        """The files of a tenant, the oldest first."""
        self.sweep()
        with self._lock:
            return [
                each
                for each in self._files.values()
                if each.tenant == tenant and purpose in (None, each.purpose)
            ]

    def path(self, identity: str, tenant: str | None) -> Path:
        """Where the content of a file is; raises `UnknownFileError`."""
        return self._path(self.get(identity, tenant).id)

    def delete(self, identity: str, tenant: str | None) -> None:
        """Delete a file; raises `UnknownFileError`. Who reads it already goes on reading."""
        self._remove(self.get(identity, tenant))

    def sweep(self) -> None:
        """Delete the files whose time is over."""
        with self._lock:
            over = [each for each in self._files.values() if _is_over(each)]
        for each in over:
            self._remove(each)

    def take_room(self, size: int) -> None:
        """Count bytes that are about to be written, or, below 0, that are gone.

        Raises:
            NoRoomError: There is no room for them.
        """
        with self._lock:
            if size > 0 and self._bytes + size > self._max_bytes:
                raise NoRoomError(
                    f"The server keeps files of {self._max_bytes} bytes in all, and these are "
                    "taken. Delete some.",
                    "max_files_size",
                )
            self._bytes += size

    def add(self, stored: StoredFile, part: Path) -> None:
        """Keep what has been written to `part`; in the place of the file of the same id.

        Raises:
            OSError: It can't be, and takes no room that isn't counted.
        """
        path = self._path(stored.id)
        part.replace(path)
        try:
            # Which makes both names survive a power failure.
            write_atomically(path.with_suffix(".json"), msgspec.json.encode(stored), mode=0o600)
        except OSError:
            if stored.id in self._files:  # of which this is the content now
                self.take_room(-stored.size)
            else:
                path.replace(part)
            raise
        with self._lock:
            before = self._files.pop(stored.id, None)
            self._bytes -= 0 if before is None else before.size
            self._files[stored.id] = stored

    def _remove(self, stored: StoredFile) -> None:
        with self._lock:
            if self._files.pop(stored.id, None) is None:
                return
            self._bytes -= stored.size
        path = self._path(stored.id)
        path.with_suffix(".json").unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _path(self, identity: str) -> Path:
        if _ID.fullmatch(identity) is None:
            raise UnknownFileError(identity)
        return self._directory / f"{identity}.data"


def _is_over(stored: StoredFile) -> bool:
    return stored.expires is not None and stored.expires <= time.time()
