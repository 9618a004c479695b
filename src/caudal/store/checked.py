"""Which files of the store were compared with their hashes, so that loading needn't do it again.

Hashing a large model takes seconds. What the system says of a file changes whenever somebody writes
to it, so a file that was whole and of which the system says the same is taken to be whole. Only a
disk that changes bytes by itself goes unnoticed by that; `caudal verify` reads everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from caudal.store.disk import sha256_of, write_atomically

_SETTLED_NS = 2_000_000_000
"""Systems note times no finer than this: of a file that was changed so shortly before it was read,
the same may be said after another change."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """What the system said of a file that had the hash."""

    sha256: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, sha256: str, status: os.stat_result) -> _Checked:
        return cls(sha256, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class CheckedFiles:
    """Notes about files, one JSON file for each. Without the right to write there are just none.

    Args:
        directory: Where the notes are; made when the first is written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def is_whole(self, path: Path, sha256: str) -> bool:
        """Whether the file was whole when it was last checked, and nobody has written to it since.

        Raises:
            OSError: There is no such file.
        """
        expected = asdict(_Checked.of(sha256, path.stat()))
        try:
            return bool(json.loads(self._note(path).read_bytes()) == expected)
        except (OSError, ValueError):
            return False

    def check(self, path: Path, sha256: str, report: Callable[[int], None]) -> bool:
        """Whether the file has the hash: reads all of it, and notes down the result.

        Args:
            path: The file.
            sha256: The hash it should have, in hex.
            report: Called with the number of bytes read so far.

        Raises:
            OSError: It can't be read.
        """
        before = path.stat()
        began = time.time_ns()
        whole = sha256_of(path, report) == sha256
        after = path.stat()
        if not whole:
            self.forget(path)
        elif began - after.st_ctime_ns > _SETTLED_NS and before.st_ctime_ns == after.st_ctime_ns:
            with contextlib.suppress(OSError):
                self._directory.mkdir(parents=True, exist_ok=True)
                note = json.dumps(asdict(_Checked.of(sha256, after)))
                write_atomically(self._note(path), note.encode())
        return whole

    def forget(self, path: Path) -> None:
        """Drop the note about a file."""
        with contextlib.suppress(OSError):
            self._note(path).unlink(missing_ok=True)

    def _note(self, path: Path) -> Path:
        return self._directory / f"{path.name}.json"
