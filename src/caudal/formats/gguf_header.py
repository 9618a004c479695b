"""Parses the header of one GGUF file: everything before the tensors' bytes.

The format: magic `GGUF`, version, number of tensors, number of metadata pairs; the pairs (key,
type, value); the tensors' descriptions
(name, dimensions, type, offset); then, aligned, the data. All is
little-endian. Files come from strangers, so each number is checked against what is left of
the file before it is used, and counts are bounded before anything is allocated for them.
"""

from __future__ import annotations

import math
import struct
from array import array
from dataclasses import dataclass
from mmap import mmap

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.gguf_metadata import MetadataValue, ScalarValue, StringArray
from caudal.formats.tensor_types import SUPPORTED_TYPES, TensorType

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT = 8
MAX_ALIGNMENT = 65536

MAX_KEY_BYTES = 65535
MAX_TENSOR_NAME_BYTES = 128
MAX_DIMENSIONS = 4
# Real files hold tens of pairs, thousands of tensors and half a million strings at most.
MAX_METADATA_PAIRS = 65536
MAX_TENSORS = 65536
MAX_ARRAY_STRINGS = 1 << 23

_STRING = 8
_ARRAY = 9
_BOOL = 7
_NUMERIC_TYPES: dict[int, tuple[str, struct.Struct, str]] = {
    0: ("uint8", struct.Struct("<B"), "<u1"),
    1: ("int8", struct.Struct("<b"), "<i1"),
    2: ("uint16", struct.Struct("<H"), "<u2"),
    3: ("int16", struct.Struct("<h"), "<i2"),
    4: ("uint32", struct.Struct("<I"), "<u4"),
    5: ("int32", struct.Struct("<i"), "<i4"),
    6: ("float32", struct.Struct("<f"), "<f4"),
    _BOOL: ("bool", struct.Struct("<B"), "<u1"),
    10: ("uint64", struct.Struct("<Q"), "<u8"),
    11: ("int64", struct.Struct("<q"), "<i8"),
    12: ("float64", struct.Struct("<d"), "<f8"),
}
_U32 = _NUMERIC_TYPES[4][1]
_U64 = _NUMERIC_TYPES[10][1]

_SMALLEST_PAIR = 8 + 1 + 4 + 1  # a key of one byte and a value of one
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # a name of one byte and one dimension


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is and what it holds.

    Attributes:
        name: The tensor's name, e.g. `blk.0.attn_q.weight`.
        shape: Dimensions in numpy order, the contiguous one last: (rows, columns) of a matrix.
        type: The block format of its bytes.
        offset: Where its bytes start in the file.
        nbytes: How many bytes it has.
        part: Which file of a split model holds it; 0 where there is one file.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int
    part: int = 0

    @property
    def num_elements(self) -> int:
        """Weights in the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """What one GGUF file says about itself.

    Attributes:
        version: The format's version, 2 or 3.
        metadata: Values by key, in the file's order.
        types: Type names by key.
        tensors: Descriptions by name, in the file's order; all lie inside the file.
    """

    version: int
    metadata: dict[str, MetadataValue]
    types: dict[str, str]
    tensors: dict[str, TensorInfo]


def parse_header(source: str, buffer: mmap, part: int) -> Header:
    """Parse and check a whole header.

    Args:
        source: The file's name, for errors.
        buffer: The mapped file.
        part: Recorded in each `TensorInfo`.

    Raises:
        ModelLoadError: The file isn't a GGUF file that can be read safely; names what is wrong.
    """
    return _HeaderParser(source, buffer).parse(part)


class _HeaderParser:
    def __init__(self, source: str, buffer: mmap) -> None:
        self._source = source
        self._buffer = buffer
        self._size = len(buffer)
        self._position = 0
        self._strings_left = MAX_ARRAY_STRINGS

    def parse(self, part: int) -> Header:
        version = self._parse_version()
        num_tensors = self._parse_count("tensors", MAX_TENSORS)
        num_pairs = self._parse_count("metadata pairs", MAX_METADATA_PAIRS)
        self._check_fits(num_pairs, _SMALLEST_PAIR, f"{num_pairs} metadata pairs")
        metadata: dict[str, MetadataValue] = {}
        types: dict[str, str] = {}
        for index in range(num_pairs):
            key = self._parse_name(f"key of metadata pair {index}", MAX_KEY_BYTES)
            if key in metadata:
                raise self._error(f"metadata key {key} appears twice")
            metadata[key], types[key] = self._parse_value(key)
        self._check_fits(num_tensors, _SMALLEST_TENSOR, f"{num_tensors} tensors")
        alignment = self._alignment(metadata, types)
        tensors: dict[str, TensorInfo] = {}
        for index in range(num_tensors):
            tensor = self._parse_tensor(index, alignment, part)
            if tensor.name in tensors:
                raise self._error(f"tensor {tensor.name} appears twice")
            tensors[tensor.name] = tensor
        data_start = -(-self._position // alignment) * alignment
        placed = {
            tensor.name: TensorInfo(
                tensor.name,
                tensor.shape,
                tensor.type,
                data_start + tensor.offset,
                tensor.nbytes,
                part,
            )
            for tensor in tensors.values()
        }
        self._check_placement(placed)
        return Header(version, metadata, types, placed)

    def _parse_version(self) -> int:
        magic = self._buffer[:4]
        if magic != MAGIC:
            raise self._error(describe_foreign_file(self._buffer[:512]))
        self._position = 4
        version = self._parse_u32("version")
        if version & 0xFFFF == 0 and version:
            raise self._error("a big-endian GGUF file; convert it to little-endian")
        if version == 1:
            raise self._error(
                "GGUF version 1, which was superseded in 2023; convert it to version 3"
            )
        if version not in SUPPORTED_VERSIONS:
            raise self._error(f"GGUF version {version}; Caudal reads versions 2 and 3")
        return version

    def _parse_count(self, what: str, limit: int) -> int:
        count = self._parse_u64(f"number of {what}")
        if count > limit:
            raise self._error(f"claims {count} {what}; at most {limit} are accepted")
        return count

    def _parse_name(self, what: str, max_bytes: int) -> str:
        length = self._parse_u64(f"length of the {what}")
        if not 1 <= length <= max_bytes:
            raise self._error(f"the {what} claims {length} bytes; 1 to {max_bytes} are allowed")
        raw = self._take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._error(f"the {what} is not valid UTF-8: {raw[:40]!r}") from None

    def _parse_value(self, key: str) -> tuple[MetadataValue, str]:
        type_number = self._parse_u32(f"type of {key}")
        if type_number == _STRING:
            length = self._parse_u64(f"length of {key}")
            return self._take(length, key).decode(errors="replace"), "string"
        if type_number == _ARRAY:
            return self._parse_array(key)
        if type_number not in _NUMERIC_TYPES:
            raise self._error(f"{key} has unknown value type {type_number}")
        name, layout, _ = _NUMERIC_TYPES[type_number]
        (value,) = layout.unpack(self._take(layout.size, key))
        scalar: ScalarValue = value
        if type_number == _BOOL:
            if value > 1:
                raise self._error(f"{key} is a bool with value {value}; it must be 0 or 1")
            scalar = bool(value)
        return scalar, name

    def _parse_array(self, key: str) -> tuple[MetadataValue, str]:
        type_number = self._parse_u32(f"element type of {key}")
        count = self._parse_u64(f"length of {key}")
        if type_number == _STRING:
            return self._skip_strings(key, count), "array of string"
        if type_number == _ARRAY:
            raise self._error(f"{key} is an array of arrays, which no model needs")
        if type_number not in _NUMERIC_TYPES:
            raise self._error(f"{key} has unknown array element type {type_number}")
        name, layout, dtype = _NUMERIC_TYPES[type_number]
        self._check_fits(count, layout.size, f"{key} with {count} elements")
        values: npt.NDArray[np.generic] = np.frombuffer(
            self._buffer, dtype, count=count, offset=self._position
        )
        self._position += count * layout.size
        if type_number == _BOOL:
            if count and values.max() > 1:
                raise self._error(f"{key} holds bools that are neither 0 nor 1")
            values = values.view(np.bool_)
        return values, f"array of {name}"

    def _skip_strings(self, key: str, count: int) -> StringArray:
        """Find where each string starts; decoding waits until somebody reads the array."""
        self._check_fits(count, 8, f"{key} with {count} strings")
        if count > self._strings_left:
            raise self._error(
                f"{key} has {count} strings; at most {MAX_ARRAY_STRINGS} per file are accepted"
            )
        self._strings_left -= count
        buffer, position, last_length = self._buffer, self._position, self._size - 8
        unpack = _U64.unpack_from
        bounds = array("Q")
        append = bounds.append
        for index in range(count):
            if position > last_length:
                raise self._truncated(f"{key}[{index}]")
            (length,) = unpack(buffer, position)
            position += 8
            append(position)
            position += length
        if position > self._size:
            raise self._truncated(f"{key}[{count - 1}]")
        append(position + 8)
        self._position = position
        return StringArray(self._source, key, buffer, bounds)

    def _alignment(self, metadata: dict[str, MetadataValue], types: dict[str, str]) -> int:
        key = "general.alignment"
        alignment = metadata.get(key, DEFAULT_ALIGNMENT)
        if isinstance(alignment, bool) or not isinstance(alignment, int):
            raise self._error(f"{key} has type {types[key]}, not an integer")
        if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self._error(
                f"{key} must be a power of two between {MIN_ALIGNMENT} and {MAX_ALIGNMENT}, "
                f"but is {alignment}"
            )
        return alignment

    def _parse_tensor(self, index: int, alignment: int, part: int) -> TensorInfo:
        """One description; its `offset` still counts from the start of the data."""
        name = self._parse_name(f"name of tensor {index}", MAX_TENSOR_NAME_BYTES)
        num_dimensions = self._parse_u32(f"number of dimensions of tensor {name}")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self._error(
                f"tensor {name} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed"
            )
        dimensions = [
            self._parse_u64(f"dimension {i} of tensor {name}") for i in range(num_dimensions)
        ]
        if 0 in dimensions:
            raise self._error(f"tensor {name} has a zero dimension: {dimensions}")
        type_number = self._parse_u32(f"type of tensor {name}")
        offset = self._parse_u64(f"offset of tensor {name}")
        tensor_type = self._supported_type(name, type_number)
        if dimensions[0] % tensor_type.block_elements:
            raise self._error(
                f"tensor {name} has rows of {dimensions[0]} weights, not a multiple of "
                f"{tensor_type.name}'s block of {tensor_type.block_elements}"
            )
        nbytes = math.prod(dimensions) // tensor_type.block_elements * tensor_type.block_bytes
        if nbytes > self._size:
            raise self._error(
                f"tensor {name} with dimensions {dimensions} of {tensor_type.name} takes {nbytes} "
                f"bytes, but the file has {self._size}: truncated or corrupt"
            )
        if offset % alignment:
            raise self._error(
                f"tensor {name} is at offset {offset}, not a multiple of the alignment {alignment}"
            )
        shape = tuple(reversed(dimensions))
        return TensorInfo(name, shape, tensor_type, offset, nbytes, part)

    def _supported_type(self, name: str, type_number: int) -> TensorType:
        try:
            tensor_type = TensorType(type_number)
        except ValueError:
            raise self._error(f"tensor {name} has unknown type {type_number}") from None
        if tensor_type not in SUPPORTED_TYPES:
            supported = " ".join(t.name for t in sorted(SUPPORTED_TYPES))
            raise self._error(
                f"tensor {name} has type {tensor_type.name}, which is not supported; "
                f"supported are {supported}"
            )
        return tensor_type

    def _check_placement(self, tensors: dict[str, TensorInfo]) -> None:
        previous: TensorInfo | None = None
        for tensor in sorted(tensors.values(), key=lambda t: t.offset):
            end = tensor.offset + tensor.nbytes
            if end > self._size:
                raise self._error(
                    f"tensor {tensor.name} ends at byte {end}, but the file has {self._size}: "
                    "truncated or corrupt"
                )
            if previous is not None and tensor.offset < previous.offset + previous.nbytes:
                raise self._error(f"tensors {previous.name} and {tensor.name} overlap")
            previous = tensor

    def _parse_u32(self, what: str) -> int:
        (value,) = _U32.unpack(self._take(4, what))
        return int(value)

    def _parse_u64(self, what: str) -> int:
        (value,) = _U64.unpack(self._take(8, what))
        return int(value)

    def _take(self, length: int, what: str) -> bytes:
        if length > self._size - self._position:
            raise self._truncated(what, length)
        start = self._position
        self._position += length
        return self._buffer[start : self._position]

    def _check_fits(self, count: int, smallest: int, what: str) -> None:
        if count * smallest > self._size - self._position:
            raise self._truncated(what, count * smallest)

    def _truncated(self, what: str, needed: int | None = None) -> ModelLoadError:
        left = self._size - self._position
        need = (
            "runs" if needed is None else f"needs {needed} bytes, but only {left} are left: it runs"
        )
        return self._error(f"{what} {need} past the end of the file: truncated or corrupt")

    def _error(self, reason: str) -> ModelLoadError:
        return ModelLoadError(self._source, reason)


def describe_foreign_file(start: bytes) -> str:
    """Say what a file that lacks the GGUF magic seems to be.

    Args:
        start: The file's first bytes, 512 or as many as it has.
    """
    text = start.lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the model; fetch the real file with `git lfs pull`"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "an HTML page, not a GGUF file; the download went wrong"
    if start.startswith(b"FUGG"):
        return "a big-endian GGUF file; convert it to little-endian"
    if start[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        return "a legacy GGML file from before GGUF; convert it to GGUF"
    if start.startswith(b"PK\x03\x04"):
        return "a zip archive (a PyTorch checkpoint or a wheel?), not a GGUF file"
    if len(start) > 8 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return "a safetensors file, not a GGUF file"
    if text.startswith(b"{"):
        return "a JSON file, not a GGUF file"
    if not start.strip(b"\0"):
        return "all zeros at its start, not a GGUF file; the download is incomplete or damaged"
    return f"not a GGUF file: it starts with {start[:4]!r} instead of {MAGIC!r}"
