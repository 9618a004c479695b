"""Which files of pieces there are in a directory, of any fingerprint, and how fast they are read.

Beneath the directory there is one for each fingerprint, and therein one for each space; what else
lies there is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from caudal.engine.tiers.files import (
    VERSION,
    DamagedFileError,
    FileName,
    is_unfinished,
    parse_name,
    read_piece,
    write_piece,
)
from caudal.engine.tiers.pieces import LINK_BYTES, Key, Piece

UNFINISHED_SECONDS = 600.0
"""What has been unfinished for so long, nobody finishes."""

_PROBE_BYTES = 8 << 20

_HOME = re.compile(r"v\d+-[0-9a-f]{32}")
_SPACE = re.compile(r"[0-9a-f]{32}")


class FoundFile(NamedTuple):
    """A file that a scan has found."""

    path: str
    space: str
    name: FileName
    size: int
    used: float
    is_own: bool


def home_name(fingerprint: bytes) -> str:
    """The name of the directory of a fingerprint."""
    return f"v{VERSION}-{hashlib.sha256(fingerprint).hexdigest()[:32]}"


def space_name(first: bytes) -> str:
    """The name of the directory of a space, by its first link."""
    return first.hex()[:32]


def homes_in(directory: Path) -> list[Path]:
    """The directories of fingerprints."""
    return _directories(directory, _HOME)


def spaces_in(home: Path) -> list[Path]:
    """The directories of a fingerprint's spaces."""
    return _directories(home, _SPACE)


def files_of(
    space: Path, *, is_own: bool, known: Callable[[Key], bool] = lambda key: False
) -> Iterator[FoundFile]:
    """The files of pieces in a directory, but for known ones; what nobody will finish is deleted.

    There may be a hundred thousand, so each takes as little as can be.
    """
    with os.scandir(space) as entries:
        for entry in entries:
            name = parse_name(entry.name)
            if name is not None and known(name.key):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                if name is not None:
                    size = -(-status.st_size // 4096) * 4096
                    yield FoundFile(entry.path, space.name, name, size, status.st_mtime, is_own)
                elif is_unfinished(entry.name) and _is_old(status.st_mtime):
                    Path(entry.path).unlink()
            except OSError:
                continue  # it has just gone


def measured_rate(home: Path) -> float:
    """How many bytes a second come from a directory of what isn't in the system's memory; infinite
    if that can't be found out.
    """
    probe = Piece(bytes(LINK_BYTES), 0, b"", 0, 0, b"")
    data = np.arange(_PROBE_BYTES, dtype=np.uint8)
    path = home / str(FileName(probe.key, 0, 0))
    try:
        write_piece(home, probe, data)
        with path.open("rb") as file:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        read_piece(path, probe.key, _PROBE_BYTES)
        return _PROBE_BYTES / (time.perf_counter() - began)
    except (OSError, DamagedFileError):
        return math.inf
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _directories(path: Path, names: re.Pattern[str]) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if names.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


def _is_old(written: float) -> bool:
    return time.time() - written > UNFINISHED_SECONDS
