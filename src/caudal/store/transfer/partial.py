"""A file that grows while it is downloaded, in any order, and is found again after a kill."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Self

from caudal.store.transfer.ranges import Ranges


class PartialFile:
    """A file of which ranges are there; which, is kept beside it.

    What is noted down is there unless the machine lost its power: then the hash tells.

    Args:
        path: Where it grows.
        size: How many bytes it will have.
        etag: What the server calls this content; another one's ranges don't count. Empty where the
            content is known by its hash.
    """

    def __init__(self, path: Path, size: int, etag: str = "") -> None:
        self.path = path
        self.size = size
        self._etag = etag
        noted = _noted(path)
        same = noted.get("size") == size and noted.get("etag") == etag
        self.there = _ranges(noted.get("there"), size) if same and path.is_file() else Ranges()
        self.resumed = self.there.count > 0
        self._saved = self.there.count
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | (0 if self.resumed else os.O_TRUNC))

    @property
    def is_complete(self) -> bool:
        """Whether no range is missing."""
        return self.there.count == self.size

    def write(self, start: int, content: bytes) -> None:
        """Put content in its place.

        Raises:
            OSError: It can't be written; a part of it may be, and counts.
        """
        view = memoryview(content)
        while view:
            written = os.pwrite(self._file, view, start)
            self.there.add(start, start + written)
            view = view[written:]
            start += written

    def save(self) -> None:
        """Note down which ranges are there."""
        count = self.there.count
        if count != self._saved:
            content = {"size": self.size, "etag": self._etag, "there": self.there.ranges}
            # Not synchronised: what it speaks of isn't either, and a slow disk would be kept busy.
            _new_notes(self.path).write_text(json.dumps(content))
            _new_notes(self.path).replace(_notes(self.path))
            self._saved = count

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def discard(self) -> None:
        """Delete it, with its notes."""
        self.close()
        forget_partial(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def count_there(path: Path, size: int) -> int:
    """How many bytes of a partial file are there, as far as is noted down."""
    noted = _noted(path)
    if noted.get("size") != size or not path.is_file():
        return 0
    return _ranges(noted.get("there"), size).count


def forget_partial(path: Path) -> None:
    """Delete a partial file, if it is there, and its notes."""
    for each in (path, _notes(path), _new_notes(path)):
        each.unlink(missing_ok=True)


def _notes(path: Path) -> Path:
    return path.with_name(path.name + ".ranges")


def _new_notes(path: Path) -> Path:
    return path.with_name(path.name + ".ranges.new")


def _noted(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_notes(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _ranges(noted: object, size: int) -> Ranges:
    """Noted ranges; none where they aren't well-formed."""
    if not isinstance(noted, list):
        return Ranges()
    for each in noted:
        if not (isinstance(each, list) and len(each) == 2 and all(type(n) is int for n in each)):
            return Ranges()
        if not 0 <= each[0] <= each[1] <= size:
            return Ranges()
    return Ranges((start, end) for start, end in noted)
