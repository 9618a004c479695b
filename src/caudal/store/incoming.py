"""Blobs on their way into a store: hashed while they are written, and whole or absent."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from caudal.errors import StoreError
from caudal.store.disk import CHUNK_BYTES, move_into_place, require_free_space, sha256_of
from caudal.store.oci import parse_digest

_CLONE = 0x40049409
"""Linux's FICLONE: a second file shares the first one's extents until one is written to."""

_YOUNG_SECONDS = 60.0
"""Whoever has just made a file may not have locked it yet."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A blob in a store.

    Attributes:
        digest: `sha256:HEX`.
        size: Its bytes.
    """

    digest: str
    size: int


class WrongDigestError(StoreError):
    """Something isn't what it has to be, and was discarded.

    Args:
        what: It.
        digest: What it has to be, `sha256:HEX`.
        found: The hash that it has, in hex.
    """

    def __init__(self, what: str, digest: str, found: str) -> None:
        self.what = what
        self.reason = f"expected sha256 {digest.removeprefix('sha256:')}, got {found}"
        super().__init__(f"{what} was discarded: {self.reason}")


class MissingBlobError(StoreError):
    """A model isn't stored, as a blob of its isn't here, or was deleted meanwhile.

    Args:
        model: The model.
        digest: The blob, `sha256:HEX`.
    """

    def __init__(self, model: str, digest: str) -> None:
        self.digest = digest
        super().__init__(f"{model} was not stored: {digest} is not here")


class Incoming:
    """What is being written: files, and directories of them.

    Their writers hold locks, which the system releases.

    Args:
        directory: Where they lie, on the file system of the blobs.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def file(self) -> Iterator[tuple[Path, BinaryIO]]:
        """A new file; what hasn't been moved elsewhere at the end is deleted."""
        descriptor, name = tempfile.mkstemp(dir=self._directory)
        path = Path(name)
        try:
            with os.fdopen(descriptor, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.fchmod(file.fileno(), 0o644)
                yield path, file
        finally:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        """A new directory; what is in it at the end is deleted with it."""
        path = Path(tempfile.mkdtemp(dir=self._directory))
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path
        finally:
            os.close(descriptor)
            shutil.rmtree(path, ignore_errors=True)

    def write(self, path: Path, content: bytes, modified: float | None = None) -> None:
        """Put a small file elsewhere on the file system: readers see the old one or this, whole.

        Args:
            path: Where; its directory is made.
            content: What.
            modified: When it is to have been written, in seconds; None: now.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.file() as (temporary, file):
            file.write(content)
            _sync(file)
            if modified is not None:
                os.utime(temporary, (modified, modified))
            move_into_place(temporary, path)

    def sweep(self) -> list[tuple[Path, int]]:
        """Delete what nobody writes any more; returns paths and bytes of what is gone."""
        removed = []
        youngest = time.time() - _YOUNG_SECONDS
        for path in self._directory.glob("*"):
            with contextlib.suppress(OSError), _opened(path) as descriptor:
                status = path.stat()
                if status.st_mtime > youngest:
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                size = status.st_size
                if path.is_dir():
                    size = sum(each.stat().st_size for each in path.glob("*"))
                    shutil.rmtree(path)
                else:
                    path.unlink()
                removed.append((path, size))
        return removed


def write_blob(
    incoming: Incoming,
    blobs: Path,
    source: Path | Iterable[bytes],
    digest: str | None,
    *,
    move: bool,
    report: Callable[[int], None] = lambda _: None,
) -> BlobInfo:
    """Write a blob under its hash; see `Store.add_blob`.

    Raises:
        WrongDigestError: It has another hash.
        OSError: It can't be read or written.
    """
    if isinstance(source, Path) and move:
        with source.open("r+b") as file:
            os.fsync(file.fileno())
        found = sha256_of(source, report)
        size = source.stat().st_size
        if digest is not None and digest != f"sha256:{found}":
            source.unlink()
            raise WrongDigestError(source.name, digest, found)
        source.chmod(0o644)
        move_into_place(source, blobs / f"sha256-{found}")
        return BlobInfo(f"sha256:{found}", size)
    with incoming.file() as (path, file):
        if isinstance(source, Path):
            found = _copy(source, file, path, report)
        else:
            found = _write(source, file, report)
        _sync(file)
        size = path.stat().st_size
        if digest is not None and digest != f"sha256:{found}":
            what = source.name if isinstance(source, Path) else "what was sent"
            raise WrongDigestError(what, digest, found)
        move_into_place(path, blobs / f"sha256-{found}")
        return BlobInfo(f"sha256:{found}", size)


def link_blob(source: Path, destination: Path) -> None:
    """Have a blob of another directory here, too, without a copy of it.

    A hard link, which stays when the other directory's owner deletes his; on another file system,
    or where the system refuses links to others' files, a symbolic one.
    """
    destination.unlink(missing_ok=True)  # a link to nowhere
    try:
        os.link(source.resolve(), destination)
    except OSError:
        destination.symlink_to(source.absolute())


def checked_digest(digest: str) -> str:
    """A digest that somebody gave, as `sha256:HEX`.

    Raises:
        StoreError: It isn't one.
    """
    try:
        return parse_digest(digest)
    except ValueError as error:
        raise StoreError(str(error)) from error


def _copy(source: Path, file: BinaryIO, path: Path, report: Callable[[int], None]) -> str:
    with source.open("rb") as original:
        size = os.fstat(original.fileno()).st_size
        try:
            fcntl.ioctl(file.fileno(), _CLONE, original.fileno())
        except OSError:
            require_free_space(path.parent, size, f"copying {source.name}")
            return _write(iter(lambda: original.read(CHUNK_BYTES), b""), file, report)
    return sha256_of(path, report)


def _write(chunks: Iterable[bytes], file: BinaryIO, report: Callable[[int], None]) -> str:
    sha256 = hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
        file.write(chunk)
        report(file.tell())
    return sha256.hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A file or a directory, to be locked."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
