"""Writes GGUF files (version 3): header first, then tensor by tensor, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from caudal.formats.gguf_header import DEFAULT_ALIGNMENT, MAGIC
from caudal.formats.gguf_metadata import MetadataValue, StringArray
from caudal.formats.gguf_values import ARRAY, NUMERIC_TYPES, STRING
from caudal.formats.tensor_file import TensorInfo

_VERSION = 3
_NUMBERS = {name: number for number, (name, _, _) in NUMERIC_TYPES.items()}
_ARRAY_OF = "array of "


def value_type(value: MetadataValue) -> str:
    """The type that converters give a value, by the names that `TypedMetadata` has for them.

    Whole numbers get 32 bits where they fit, unsigned ones unless they are negative.
    """
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if value < 0:
            return "int32" if value >= -(2**31) else "int64"
        return "uint32" if value < 2**32 else "uint64"
    if isinstance(value, float):
        return "float32"
    if isinstance(value, str):
        return "string"
    if isinstance(value, np.ndarray):
        kind = "int32" if value.dtype.kind in "iu" else value.dtype.name
        return _ARRAY_OF + ("float32" if value.dtype.kind == "f" else kind)
    return _ARRAY_OF + "string"


class GGUFWriter:
    """A GGUF file that is being written, under another name until it is whole.

    Use `create`, then `write` the bytes of all tensors in the order of their descriptions.
    """

    def __init__(self, file: IO[bytes], tensors: Sequence[TensorInfo]) -> None:
        self._file = file
        self._left = [(each, each.nbytes) for each in reversed(tensors) if each.nbytes]

    @classmethod
    @contextlib.contextmanager
    def create(
        cls,
        path: Path,
        metadata: Mapping[str, MetadataValue],
        tensors: Sequence[TensorInfo],
        *,
        types: Mapping[str, str] | None = None,
    ) -> Iterator[Self]:
        """Begin a file; at the end it is complete, on the disk, and in the place of any other.

        Where the block is left by an exception, nothing is left of the file.

        Args:
            path: What it is called once it is whole.
            metadata: Values by key, in the order in which they are written.
            tensors: Descriptions, in the order of their bytes.
            types: Types of the values of some keys, as a `TypedMetadata` names them; that of
                others is `value_type`.

        Raises:
            OSError: The file can't be written.
            ValueError: Fewer bytes were written than the tensors have.
        """
        header = _header(metadata, types or {}, tensors)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        with partial.open("xb") as file:
            try:
                file.write(header)
                writer = cls(file, tensors)
                yield writer
                if writer._left:
                    raise ValueError(f"{writer._left[-1][0].name} isn't all there")
                file.flush()
                os.fsync(file.fileno())
                partial.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    partial.unlink()
                raise
        _sync_directory(path.parent)

    def write(self, data: npt.NDArray[np.uint8]) -> None:
        """Append bytes of the tensor that isn't complete yet, and at its end what aligns the next.

        Raises:
            OSError: They can't be written.
            ValueError: They are more than the tensor has.
        """
        count = data.nbytes
        if not self._left or count > self._left[-1][1]:
            raise ValueError(f"{count} bytes are more than are left of the tensor")
        self._file.write(data.data)
        tensor, left = self._left[-1]
        if left > count:
            self._left[-1] = (tensor, left - count)
            return
        self._file.write(bytes(-tensor.nbytes % DEFAULT_ALIGNMENT))
        self._left.pop()


def _header(
    metadata: Mapping[str, MetadataValue], types: Mapping[str, str], tensors: Sequence[TensorInfo]
) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), _encoded(value, types.get(key) or value_type(value))]
    offset = 0
    for tensor in tensors:
        dimensions = tensor.shape[::-1]
        parts += [
            _string(tensor.name),
            struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions),
            struct.pack("<IQ", tensor.type, offset),
        ]
        offset += tensor.nbytes + -tensor.nbytes % DEFAULT_ALIGNMENT
    header = b"".join(parts)
    return header + bytes(-len(header) % DEFAULT_ALIGNMENT)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encoded(value: Any, kind: str) -> bytes:
    """A value's type number and bytes."""
    if kind == "string":
        return struct.pack("<I", STRING) + _string(value)
    if not kind.startswith(_ARRAY_OF):
        number = _NUMBERS[kind]
        return struct.pack("<I", number) + NUMERIC_TYPES[number][1].pack(value)
    element = kind.removeprefix(_ARRAY_OF)
    if element == "string":
        texts = value.tolist() if isinstance(value, StringArray) else value
        strings = b"".join(map(_string, texts))
        return struct.pack("<IIQ", ARRAY, STRING, len(texts)) + strings
    number = _NUMBERS[element]
    array = np.asarray(value).astype(NUMERIC_TYPES[number][2])
    return struct.pack("<IIQ", ARRAY, number, array.size) + array.tobytes()


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
