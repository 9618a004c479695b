"""Writing to the store so that a crash, a second process or a full disk never leaves it broken."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from caudal.errors import StoreError

CHUNK_BYTES = 1 << 20
"""How much of a file is in memory at a time."""

_LOCK_POLL_SECONDS = 0.1
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@contextmanager
def explained_os_errors(home: Path) -> Iterator[None]:
    """Turn what the operating system refuses into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        if isinstance(error.filename, str) and error.filename:
            what += f": {error.filename}"
        if error.errno in _FULL:
            message = (
                f"no space left in {home}. Free some, or set CAUDAL_HOME to a directory on a "
                "larger disk, then try again: of a pull, it goes on from where it stopped."
            )
        elif error.errno in _REFUSED:
            message = (
                f"cannot write to the store at {home} ({what}). "
                "Set CAUDAL_HOME to a directory that you may write to."
            )
        else:
            message = f"the store at {home} failed ({what})"
        raise StoreError(message) from error


def require_free_space(directory: Path, needed: int, purpose: str) -> None:
    """Refuse early what could not be written in full.

    Raises:
        StoreError: Fewer than `needed` bytes are free.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise StoreError(
            f"{purpose} needs {needed / 1e6:.0f} MB in {directory}, but only {free / 1e6:.0f} MB "
            "are free. Free some, or set CAUDAL_HOME to a directory on a larger disk."
        )


@contextmanager
def exclusive_lock(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock that the operating system releases when its holder dies.

    Args:
        path: The lock file.
        waiting: Called once if somebody else holds it.

    Raises:
        StoreError: The file system has no locks.
        OSError: The lock file cannot be opened.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire(poll_interval=_LOCK_POLL_SECONDS)
    except NotImplementedError as error:
        raise StoreError(
            f"{path.parent} is on a file system without file locks. "
            "Set CAUDAL_HOME to a directory on another one."
        ) from error
    try:
        yield
    finally:
        lock.release()


def write_atomically(
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Put `content` at `path`: readers see the old file or the new one, whole.

    Args:
        path: The file.
        content: What it is to hold.
        mode: Who may do what with it; None for what new files have.
        owner: Whose it is, a user and a group; None for what new files have.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with temporary.open("wb") as file:
            if owner is not None:
                os.chown(temporary, *owner)
            if mode is not None:
                temporary.chmod(mode)  # before anything is in it
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        move_into_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def move_into_place(source: Path, destination: Path) -> None:
    """Rename a complete, synchronised file and make the new name survive a power failure."""
    source.replace(destination)
    synchronise_names(destination.parent)


def synchronise_names(directory: Path) -> None:
    """Make new names in a directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path, limit: int) -> bytes:
    """What is in a file that may be anybody's, and needn't be one.

    Args:
        path: The file. What else may have its name (a pipe, a device) is never waited for.
        limit: Most bytes that it may have.

    Raises:
        ValueError: It has more, or is no regular file.
        OSError: It can't be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:  # raises `IsADirectoryError`
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is no file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{path} has more than {limit} bytes, which it never needs")
    return content


def sha256_of(path: Path, report: Callable[[int], None]) -> str:
    """Hash a file.

    Args:
        path: The file.
        report: Called with the number of bytes hashed so far.

    Returns:
        The hash in hex.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            report(file.tell())
    return digest.hexdigest()
