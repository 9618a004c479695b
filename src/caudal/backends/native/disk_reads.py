"""How fast the disk is that weights are on which don't fit in memory."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

_PIECE_BYTES = 8 << 20


def read_rate(path: Path, seconds: float = 0.25) -> float:
    """Bytes a second at which a file comes from its disk, past what the system has in memory.

    Args:
        path: The file.
        seconds: How long to measure.

    Raises:
        OSError: It can't be read.
    """
    direct = getattr(os, "O_DIRECT", 0)
    try:
        descriptor = os.open(path, os.O_RDONLY | direct)
    except OSError:  # a file system that has no direct reads
        descriptor, direct = os.open(path, os.O_RDONLY), 0
    try:
        pieces = max(1, os.fstat(descriptor).st_size // _PIECE_BYTES)
        step = max(1, round(pieces * 0.382)) | 1  # here and there, and no piece soon again
        done, piece = 0, 0
        with mmap.mmap(-1, _PIECE_BYTES) as buffer:  # aligned, as direct reads want it
            began = time.perf_counter()
            while (passed := time.perf_counter() - began) < seconds or not done:
                offset = piece * _PIECE_BYTES
                if not direct and hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(descriptor, offset, _PIECE_BYTES, os.POSIX_FADV_DONTNEED)
                count = os.preadv(descriptor, [buffer], offset)
                if not count:
                    break
                done += count
                piece = (piece + step) % pieces
        return done / max(passed, 1e-9)
    finally:
        os.close(descriptor)
