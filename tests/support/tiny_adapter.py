"""Adapters that are made up."""

from __future__ import annotations

import zlib

import numpy as np

from caudal.errors import AdapterNotFoundError, ModelLoadError
from caudal.formats.lora.adapter import Adapter, LowRank


def tiny_adapter(source: str) -> Adapter:
    """One that changes a single matrix, for models that have no matrices."""
    scale = 1.0 + zlib.crc32(source.encode())
    change = LowRank(np.ones((1, 2), np.float32), np.ones((2, 1), np.float32), scale)
    return Adapter(source, {"blk.0.attn_q.weight": change})


def read_tiny_adapter(name: str, path: str) -> Adapter:
    """One for any path but those that say that there is none, or a broken one."""
    if "missing" in path:
        raise AdapterNotFoundError(name, path)
    if "broken" in path:
        raise ModelLoadError(path, "it is broken")
    return tiny_adapter(path)
