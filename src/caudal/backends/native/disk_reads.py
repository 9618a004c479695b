"""What weights that don't fit in memory cost: how much a token reads, and how fast the disk is."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path

from caudal.models.program import Embed, Experts, ExpertsName, MatrixName, Program, TensorName

_PIECE_BYTES = 8 << 20


def bytes_per_token(program: Program, sizes: Mapping[TensorName, int], memory: int) -> int:
    """Bytes of weights that a token by itself reads from the disk, with so much memory for them.

    Experts are taken to be chosen evenly; where a few are chosen often, it is less.

    Args:
        program: The model's program.
        sizes: Bytes of each matrix, or of all experts' matrices of a name.
        memory: Bytes.
    """
    passed: set[TensorName] = set()
    stacks: dict[ExpertsName, float] = {}
    for op in (*program.body, *program.tail, *program.head):
        for value in op.values().values():
            if isinstance(value, MatrixName) and not isinstance(op, Embed):
                passed.add(value)
            elif isinstance(value, ExpertsName) and isinstance(op, Experts):
                stacks[value] = op.used / op.logits.width
    everyone = sum(sizes[name] for name in passed)
    chosen = sum(share * sizes[name] for name, share in stacks.items())
    all_experts = sum(sizes[name] for name in stacks)
    left = max(0, memory - everyone)
    missing = max(0.0, 1 - left / all_experts) if all_experts else 0.0
    return max(0, everyone - memory) + round(missing * chosen)


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
