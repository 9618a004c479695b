"""Writes safetensors files for tests: valid ones, and pieces to build broken ones from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {
    **{"float32": "F32", "float16": "F16", "uint16": "BF16"},
    **{"int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8"},
}


@dataclass(frozen=True, slots=True)
class Bits:
    """An array of another type of numbers, such as F8_E4M3."""

    dtype: str
    array: NDArray[Any]


def encode_header(header: Any) -> bytes:
    """The length and the JSON of a header."""
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return len(text).to_bytes(8, "little") + text


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any] | Bits]) -> Path:
    """Write a file; arrays of uint16 are taken for the bits of BF16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, given in tensors.items():
        values = given.array if isinstance(given, Bits) else given
        raw = values.tobytes()
        header[name] = {
            "dtype": given.dtype if isinstance(given, Bits) else _DTYPES[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    path.write_bytes(encode_header(header) + data)
    return path


def as_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of floats."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)
