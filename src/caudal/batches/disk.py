"""Files that nobody else may read, and that are there as a whole or not at all."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caudal.batches.errors import NoRoomError

PRIVATE = 0o700

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def private_directory(path: Path) -> None:
    """Make a directory for one user alone, where there is none."""
    path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)


@contextmanager
def told_when_full() -> Iterator[None]:
    """Turn what the system says of a full disk into a `NoRoomError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoRoomError("There is no space left on the server's disk.") from error
        raise
