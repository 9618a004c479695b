"""Safetensors files: checked before anything in them is used.

The format: eight bytes with the length of a JSON header, the header, which gives each tensor's
type, shape and place, and then the tensors' bytes, without gaps. Our own reader because weights go
from the file to the packing kernels as they are, BF16 included, which numpy has no type for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.byte_file import ByteFile
from caudal.formats.tensor_file import StoredTensor
from caudal.formats.tensor_types import TensorType

MAX_HEADER_BYTES = 16 << 20
"""More than the largest models need; the format's own limit is six times as much, which as JSON
would take a gigabyte of memory."""

_LENGTH_BYTES = 8
_MAX_DIMENSIONS = 8
_MAX_ELEMENTS = 1 << 48
# The numpy type that keeps the bits.
_NUMPY_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "u1",
}  # fmt: skip
_TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """What a file says of a tensor, of whichever type.

    Attributes:
        dtype: The type's name, e.g. `BF16`.
        shape: Its dimensions.
        offset: Where its bytes start in the file.
        nbytes: How many they are.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """An open safetensors file; a context manager closes it.

    Attributes:
        path: The file.
        entries: All tensors by name.
        tensors: Descriptions of the tensors of types that Caudal computes with, by name.
        others: Type names of the rest (integers, 8-bit floats), by name.
    """

    def __init__(self, file: ByteFile, entries: Mapping[str, SafetensorsEntry]) -> None:
        self.path = file.path
        self.entries = entries
        self.tensors: Mapping[str, StoredTensor] = {
            name: StoredTensor(name, entry.shape, _TYPES[entry.dtype], entry.offset)
            for name, entry in entries.items()
            if entry.dtype in _TYPES
        }
        self.others: Mapping[str, str] = {
            name: entry.dtype for name, entry in entries.items() if entry.dtype not in _TYPES
        }
        self._file = file

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a file.

        Raises:
            ModelLoadError: It can't be read, isn't safetensors, or is damaged; names what is wrong.
        """
        file = ByteFile(Path(path))
        try:
            if file.size < _LENGTH_BYTES:
                raise ModelLoadError(
                    str(path), f"it has {file.size} bytes, too few for a safetensors file"
                )
            entries = _read_header(str(path), file)
        except BaseException:
            file.close()
            raise
        return cls(file, entries)

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes, read-only, shape (nbytes,).

        Raises:
            KeyError: There is no such tensor.
            ModelLoadError: The file is shorter than it was.
        """
        return self.tensor_rows(name, 0, self.tensors[name].rows)

    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """The bytes of some rows, shape (count · row_bytes,); for errors see `tensor_bytes`."""
        tensor = self.tensors[name]
        offset = tensor.offset + first * tensor.row_bytes
        return np.frombuffer(self._file.read(offset, count * tensor.row_bytes), np.uint8)

    def array(self, name: str) -> npt.NDArray[Any]:
        """All of a tensor, read-only, of the numpy type that keeps its bits.

        BF16 comes as uint16, 8-bit floats and booleans as uint8.

        Raises:
            KeyError: There is no such tensor.
            ModelLoadError: The file is shorter than it was.
        """
        entry = self.entries[name]
        data = self._file.read(entry.offset, entry.nbytes)
        return np.frombuffer(data, _NUMPY_TYPES[entry.dtype]).reshape(entry.shape)

    def tensor_place(self, name: str) -> tuple[int, int]:
        """The descriptor of the open file, and where in it a tensor begins.

        Raises:
            KeyError: There is no such tensor.
            ValueError: The file has been closed.
        """
        return self._file.descriptor, self.tensors[name].offset

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_header(source: str, file: ByteFile) -> dict[str, SafetensorsEntry]:
    size = file.size
    length = int.from_bytes(file.read(0, _LENGTH_BYTES), "little")
    if length > min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        raise ModelLoadError(
            source,
            f"its first eight bytes announce a header of {length} bytes, but the file has {size} "
            f"(at most {MAX_HEADER_BYTES} are read); it is truncated, or no safetensors file",
        )
    try:
        header = json.loads(file.read(_LENGTH_BYTES, length), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(source, f"its header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelLoadError(source, "its header is not a JSON object")
    header.pop("__metadata__", None)
    base = _LENGTH_BYTES + length
    entries: dict[str, SafetensorsEntry] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtype, shape, begin, end = _read_entry(source, name, entry)
        spans.append((begin, end, name))
        entries[name] = SafetensorsEntry(dtype, shape, base + begin, end - begin)
    _check_spans(source, spans, size - base)
    return entries


def _read_entry(source: str, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    def wrong(what: str) -> ModelLoadError:
        return ModelLoadError(source, f"tensor {name!r} {what}")

    if not isinstance(entry, dict):
        raise wrong("is not described by a JSON object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _NUMPY_TYPES:
        raise wrong(f"has the unknown dtype {dtype!r}")
    if (
        not isinstance(shape, list)
        or len(shape) > _MAX_DIMENSIONS
        or not all(_is_count(size) for size in shape)
        or math.prod(shape) > _MAX_ELEMENTS
    ):
        raise wrong(f"has the impossible shape {shape!r}")
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(_is_count(offset) for offset in offsets)
        or offsets[0] > offsets[1]
    ):
        raise wrong(f"has the impossible data_offsets {offsets!r}")
    expected = math.prod(shape) * np.dtype(_NUMPY_TYPES[dtype]).itemsize
    if offsets[1] - offsets[0] != expected:
        raise wrong(
            f"has {offsets[1] - offsets[0]} bytes, but {dtype} of shape {shape} takes {expected}"
        )
    return dtype, tuple(shape), offsets[0], offsets[1]


def _check_spans(source: str, spans: list[tuple[int, int, str]], available: int) -> None:
    """Every byte after the header belongs to exactly one tensor, as the format wants it."""
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            what = "overlaps the tensor before it" if begin < position else "leaves a gap before it"
            raise ModelLoadError(source, f"tensor {name!r} {what} (byte {begin})")
        if end > available:
            raise ModelLoadError(
                source,
                f"tensor {name!r} ends at byte {end} of {available}; the file is truncated",
            )
        position = end
    if position != available:
        raise ModelLoadError(source, f"{available - position} bytes follow its last tensor")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result
