"""Pieces as files: one each, named by what it is, with a checksum, and there only as a whole.

A file is written under another name and then renamed, so that a process killed at any moment
leaves none that is half there. After a power failure one may be: its checksum tells.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from caudal.backends.executor import Bytes
from caudal.engine.tiers.pieces import LINK_BYTES, Key, Piece

VERSION = 1
"""Of the format; in the names of directories, so that others' files aren't even looked at."""

_HEADER = struct.Struct("<8sIIQ32s16s")  # magic, version, kind, bytes, link, checksum
_MAGIC = b"CAUDALKV"
_NAME = re.compile(r"([0-9a-f]{64})\.(\d{1,3})\.(\d{1,6})\.(\d{1,12})\.kv")
_UNFINISHED = ".tmp"

_PRIVATE = 0o600


class DamagedFileError(Exception):
    """A file isn't what was written."""


class FileName(NamedTuple):
    """What a file's name says of it.

    Attributes:
        key: What its piece is found by.
        tokens: How many tokens the piece's node has.
        end: How many there are up to the node's end.
    """

    key: Key
    tokens: int
    end: int

    def __str__(self) -> str:
        return f"{self.key[0].hex()}.{self.key[1]}.{self.tokens}.{self.end}.kv"


def file_bytes(size: int) -> int:
    """What a piece of so many bytes takes on a disk."""
    return -(-(size + _HEADER.size) // 4096) * 4096


def parse_name(name: str) -> FileName | None:
    """What a name says; None for a file that is none of ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return FileName((bytes.fromhex(match[1]), int(match[2])), int(match[3]), int(match[4]))


def is_unfinished(name: str) -> bool:
    """Whether it is a file that was being written."""
    return name.endswith(_UNFINISHED) and parse_name(name.split("+")[0]) is not None


def write_piece(directory: Path, piece: Piece, data: Bytes) -> None:
    """Write a piece's file; it is there as a whole or not at all.

    Raises:
        OSError: It can't be written.
    """
    name = FileName(piece.key, piece.tokens, piece.end)
    unfinished = directory / f"{name}+{os.getpid()}{_UNFINISHED}"
    header = _HEADER.pack(_MAGIC, VERSION, piece.kind, len(data), piece.link, _checksum(data))
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
        try:
            written = os.writev(descriptor, [header, data.data]) - _HEADER.size
            while 0 <= written < len(data):
                written += os.write(descriptor, data.data[written:])
        finally:
            os.close(descriptor)
        if written != len(data):
            raise OSError(errno.EIO, "only a part was written", str(unfinished))
        unfinished.rename(directory / str(name))
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def read_piece(path: Path, key: Key, size: int) -> Bytes:
    """The bytes of a piece.

    Args:
        path: Its file.
        key: What it must be.
        size: How many bytes it must have.

    Raises:
        DamagedFileError: It is something else.
        OSError: It can't be read.
    """
    header = bytearray(_HEADER.size)
    data = np.empty(size, np.uint8)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size != _HEADER.size + size:
            raise DamagedFileError("it has another length")
        done = os.readv(descriptor, [header, data.data]) - _HEADER.size
        while 0 <= done < size:
            more = os.readv(descriptor, [data.data[done:]])
            done = done + more if more else -1
        if done != size:
            raise DamagedFileError("it ends early")
    finally:
        os.close(descriptor)
    expected = _HEADER.pack(_MAGIC, VERSION, key[1], size, key[0], _checksum(data))
    if header != expected:
        raise DamagedFileError("its checksum is wrong")
    return data


def _checksum(data: Bytes) -> bytes:
    return xxhash.xxh3_128_digest(data.data)


assert _HEADER.size == 8 + 4 + 4 + 8 + LINK_BYTES + 16
