"""What has become of a batch's lines so far: appended, synchronised, and whole after any crash.

Each entry is a line: the index of the line that it is of, `+` or `-` (failed), its tokens, a
checksum, and the text that goes into the output. What a crash has torn is cut off when the journal
is opened again.
"""

from __future__ import annotations

import fcntl
import os
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from caudal.batches.answers import Outcome
from caudal.batches.usage import Usage

_HEAD = re.compile(rb"(\d+) ([+-]) (\d+),(\d+),(\d+),(\d+) ([0-9a-f]{8}) ")

_NOWHERE = 2**64 - 1


class Writable(Protocol):
    """What can be written to."""

    def write(self, data: bytes, /) -> int:
        """Append."""


class Journal:
    """The journal of one batch.

    Args:
        path: Where it is, or is to be.
        count: How many lines the batch has.

    Raises:
        BlockingIOError: Another process has it open.
        OSError: It can't be read or written.

    Attributes:
        usage: Tokens of all lines in it.
        completed: Lines that were answered.
        failed: Lines that have failed.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._places = array("Q", [_NOWHERE]) * count
        self._sizes = array("L", [0]) * count
        self._failed = bytearray(count)
        self.usage = Usage()
        self.completed = 0
        self.failed = 0
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise
        self._end = 0
        self._recover()

    def __contains__(self, index: int) -> bool:
        return self._places[index] != _NOWHERE

    def append(self, outcomes: Sequence[tuple[int, Outcome]]) -> None:
        """Note what became of lines. They are on the disk when this returns.

        Raises:
            OSError: They aren't, and the journal is as it was.
        """
        noted = [(index, each) for index, each in outcomes if index not in self]
        entries = [_entry(index, each) for index, each in noted]
        try:
            _write_all(self._file, b"".join(entries), self._end)
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self._end)
            raise
        for (index, outcome), entry in zip(noted, entries, strict=True):
            self._note(index, outcome.failed, outcome.usage, len(outcome.text) + 1, len(entry))

    def write_to(
        self,
        output: Writable,
        errors: Writable,
        unanswered: Callable[[int], bytes],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write what became of all lines, in the order of the input.

        Args:
            output: Gets those that were answered.
            errors: Gets the others; may be the same.
            unanswered: The text of a line that isn't in the journal.
            stop: Whether nobody wants it any more.

        Raises:
            OSError: It can't be written.
        """
        for index, place in enumerate(self._places):
            if stop():
                return
            if place == _NOWHERE:
                errors.write(unanswered(index) + b"\n")
            else:
                text = os.pread(self._file.fileno(), self._sizes[index], place)
                (errors if self._failed[index] else output).write(text)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _recover(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        with os.fdopen(os.dup(self._file.fileno()), "rb") as file:
            file.seek(0)
            for entry in file:
                read = _read(entry, len(self._places))
                if read is None or read[0] in self:
                    break
                self._note(*read, len(entry))
        if self._end < size:
            self._file.truncate(self._end)

    def _note(self, index: int, failed: bool, usage: Usage, size: int, entry_size: int) -> None:
        self._end += entry_size
        self._places[index] = self._end - size
        self._sizes[index] = size
        self._failed[index] = failed
        self.usage += usage
        self.failed += failed
        self.completed += not failed


def _entry(index: int, outcome: Outcome) -> bytes:
    usage = outcome.usage
    head = b"%d %s %d,%d,%d,%d" % (
        index,
        b"-" if outcome.failed else b"+",
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    )
    checksum = zlib.crc32(outcome.text, zlib.crc32(head))
    return b"%b %08x %b\n" % (head, checksum, outcome.text)


def _read(entry: bytes, count: int) -> tuple[int, bool, Usage, int] | None:
    """An entry; None where it isn't whole."""
    head = _HEAD.match(entry)
    if head is None or not entry.endswith(b"\n") or int(head[1]) >= count:
        return None
    text = entry[head.end() : -1]
    if zlib.crc32(text, zlib.crc32(entry[: head.start(7) - 1])) != int(head[7], 16):
        return None
    tokens: Iterable[int] = map(int, head.group(3, 4, 5, 6))
    return int(head[1]), head[2] == b"-", Usage(*tokens), len(text) + 1


def _write_all(file: BinaryIO, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file.fileno(), view, offset)
        view, offset = view[written:], offset + written
