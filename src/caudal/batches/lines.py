"""The lines of a batch's input: where each is, and whether it can be asked at all."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from caudal.batches.errors import InputChangedError

MAX_FAULTS = 100
"""Faulty lines that are told of; an input with more is read no further."""

MAX_CUSTOM_ID = 512
"""Longest `custom_id`, in characters: all of a batch's are in memory while it is checked."""

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """What one line asks.

    Attributes:
        custom_id: What it is called by whoever asks.
        url: The route that is to answer.
        body: What that is sent.
    """

    custom_id: str
    url: str
    body: dict[str, Any]

    def encoded(self) -> bytes:
        """The body as JSON."""
        return json.dumps(self.body, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an input can't be a batch.

    Attributes:
        code: A word for programs.
        message: What is wrong, for people.
        param: The field to blame, where it is one's.
        line: Its number, the first is 1; None where it is no line's.
    """

    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def described(self) -> dict[str, Any]:
        """The same as OpenAI's API gives it."""
        return {
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "line": self.line,
        }


class LineError(Exception):
    """A line can't be asked.

    Args:
        code: A word for programs.
        message: What is wrong, for people.
        param: The field to blame.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class ReadLine(Protocol):
    """Reads a form of lines."""

    def __call__(self, data: bytes, number: int) -> Line:
        """Read a line.

        Args:
            data: It, without its end.
            number: Which it is of its file, for those that have no name of their own.

        Raises:
            LineError: It can't be asked.
        """


@dataclass(frozen=True, slots=True)
class LineLimits:
    """What a batch may bring.

    Attributes:
        lines: Most lines; None for any number.
        line_bytes: Largest line.
    """

    lines: int | None = 50_000
    line_bytes: int = 32 * 2**20


@dataclass(slots=True)
class Lines:
    """Where the lines of an input are. Blank ones are none.

    Attributes:
        path: The file.
        models: What models they name.
    """

    path: Path
    models: set[str] = field(default_factory=set)
    _state: tuple[int, ...] = ()
    _offsets: array[int] = field(default_factory=lambda: array("Q"))
    _sizes: array[int] = field(default_factory=lambda: array("L"))
    _numbers: array[int] = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        return len(self._offsets)

    def number(self, index: int) -> int:
        """Which line of the file it is; the first is 1."""
        return self._numbers[index]

    def read(self, index: int) -> bytes:
        """A line.

        Raises:
            InputChangedError: The file isn't the one that was looked through any more.
            OSError: It can't be read.
        """
        with self.path.open("rb") as file:
            if _state_of(file) != self._state:
                raise InputChangedError(self.path)
            return os.pread(file.fileno(), self._sizes[index], self._offsets[index])

    def add(self, offset: int, size: int, number: int) -> None:
        """Note a line."""
        self._offsets.append(offset)
        self._sizes.append(size)
        self._numbers.append(number)


def find_lines(
    path: Path, read: ReadLine, limits: LineLimits, stop: Callable[[], bool] = lambda: False
) -> tuple[Lines, list[Fault]]:
    """Look through an input.

    Args:
        path: The file.
        read: What reads a line.
        limits: What there may be of them.
        stop: Whether nobody wants to know any more.

    Returns:
        Where its lines are, and what is wrong with them: with any fault, it is no batch.

    Raises:
        OSError: It can't be read.
    """
    with path.open("rb") as file:
        lines, faults = Lines(path, _state=_state_of(file)), list[Fault]()
    seen: set[str] = set()
    for offset, data, number in _pieces(path, limits.line_bytes):
        if stop() or len(faults) >= MAX_FAULTS:
            break
        if limits.lines is not None and len(lines) == limits.lines:
            message = f"The input has more than {limits.lines} lines."
            faults.append(Fault("too_many_tasks", message, None, number))
            break
        try:
            if data is None:
                raise LineError(
                    "line_too_long", f"This line has more than {limits.line_bytes} bytes."
                )
            line = read(data, number)
            if line.custom_id in seen:
                raise LineError(
                    "duplicate_custom_id",
                    f"The custom_id {line.custom_id!r:.100} is that of an earlier line. Each line "
                    "of a batch needs one of its own.",
                    "custom_id",
                )
        except LineError as error:
            faults.append(Fault(error.code, error.message, error.param, number))
            continue
        seen.add(line.custom_id)
        if isinstance(model := line.body.get("model"), str):
            lines.models.add(model)
        lines.add(offset, len(data), number)
    if not lines and not faults:
        faults.append(Fault("empty_file", "The input has no lines."))
    return lines, faults


def _state_of(file: BinaryIO) -> tuple[int, ...]:
    """What is another where somebody writes to a file, or puts one in its place."""
    state = os.fstat(file.fileno())
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _pieces(path: Path, most: int) -> Iterator[tuple[int, bytes | None, int]]:
    """Offset, bytes and number of each line that isn't blank; None for one that is too long."""
    offset = number = 0
    with path.open("rb") as file:
        while piece := file.readline(most + 2):
            number += 1
            start, size = offset, len(piece)
            is_whole = piece.endswith(b"\n") or size < most + 2
            while not is_whole:
                more = file.readline(2**20)
                size += len(more)
                is_whole = not more or more.endswith(b"\n")
                piece = b""
            offset += size
            if not piece:
                yield start, None, number
                continue
            if number == 1 and piece.startswith(_BOM):
                start, piece = start + len(_BOM), piece[len(_BOM) :]
            if stripped := piece.rstrip(b"\r\n"):
                if not stripped.strip():
                    continue
                yield start, stripped if len(stripped) <= most else None, number
