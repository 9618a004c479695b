"""Parses the header of one GGUF file: everything before the tensors' bytes.

The format: magic `GGUF`, version, number of tensors, number of metadata pairs; the pairs (key,
type, value); the tensors' descriptions (name, dimensions, type, offset); then, aligned, the data.
All is little-endian. Files come from strangers, so each number is checked against what is left of
the file before it is used, and counts are bounded before anything is allocated for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from caudal.formats.byte_file import ByteFile
from caudal.formats.foreign_files import describe_foreign_file
from caudal.formats.gguf_cursor import Cursor
from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.gguf_values import parse_value
from caudal.formats.tensor_file import StoredTensor
from caudal.formats.tensor_types import (
    FIRST_OWN_TYPE,
    REFUSALS,
    SUPPORTED_TYPES,
    TensorType,
)

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT = 8
MAX_ALIGNMENT = 65536

MAX_KEY_BYTES = 65535
MAX_TENSOR_NAME_BYTES = 128
MAX_DIMENSIONS = 4
# Real files hold tens of pairs and thousands of tensors at most.
MAX_METADATA_PAIRS = 65536
MAX_TENSORS = 65536

_SMALLEST_PAIR = 8 + 1 + 4 + 1  # a key of one byte and a value of one
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # a name of one byte and one dimension


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
    tensors: dict[str, StoredTensor]


def parse_header(source: str, file: ByteFile, part: int) -> Header:
    """Parse and check a whole header.

    Args:
        source: The file's name, for errors.
        file: The file.
        part: Recorded in each tensor.

    Raises:
        ModelLoadError: The file isn't a GGUF file that can be read safely; names what is wrong.
    """
    cursor = Cursor(source, file)
    version = _parse_version(cursor)
    num_tensors = cursor.count("tensors", MAX_TENSORS)
    num_pairs = cursor.count("metadata pairs", MAX_METADATA_PAIRS)
    metadata, types = _parse_pairs(cursor, num_pairs)
    alignment = _alignment(cursor, metadata, types)
    tensors = _parse_tensors(cursor, num_tensors, alignment, part)
    tensors = _with_long_blocks(tensors, cursor.size)
    _check_placement(cursor, tensors)
    return Header(version, metadata, types, tensors)


def _parse_version(cursor: Cursor) -> int:
    cursor.fill(512)
    if not cursor.buffer.startswith(MAGIC):
        raise cursor.error(describe_foreign_file(bytes(cursor.buffer[:512])))
    cursor.position = len(MAGIC)
    version = cursor.u32("version")
    if version & 0xFFFF == 0 and version:
        raise cursor.error("a big-endian GGUF file; convert it to little-endian")
    if version == 1:
        raise cursor.error("GGUF version 1, superseded in 2023; convert it to version 3")
    if version not in SUPPORTED_VERSIONS:
        raise cursor.error(f"GGUF version {version}; Caudal reads versions 2 and 3")
    return version


def _parse_pairs(cursor: Cursor, count: int) -> tuple[dict[str, MetadataValue], dict[str, str]]:
    cursor.check_fits(count, _SMALLEST_PAIR, f"{count} metadata pairs")
    metadata: dict[str, MetadataValue] = {}
    types: dict[str, str] = {}
    for index in range(count):
        key = cursor.name(f"key of metadata pair {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.error(f"metadata key {key} appears twice")
        metadata[key], types[key] = parse_value(cursor, key)
    return metadata, types


def _alignment(cursor: Cursor, metadata: dict[str, MetadataValue], types: dict[str, str]) -> int:
    key = "general.alignment"
    alignment = metadata.get(key, DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int):
        raise cursor.error(f"{key} has type {types[key]}, not an integer")
    if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(
            f"{key} must be a power of two between {MIN_ALIGNMENT} and {MAX_ALIGNMENT}, "
            f"but is {alignment}"
        )
    return alignment


def _parse_tensors(
    cursor: Cursor, count: int, alignment: int, part: int
) -> dict[str, StoredTensor]:
    cursor.check_fits(count, _SMALLEST_TENSOR, f"{count} tensors")
    tensors: dict[str, StoredTensor] = {}
    for index in range(count):
        tensor = _parse_tensor(cursor, index, alignment, part)
        if tensor.name in tensors:
            raise cursor.error(f"tensor {tensor.name} appears twice")
        tensors[tensor.name] = tensor
    data_start = -(-cursor.position // alignment) * alignment
    return {
        name: replace(tensor, offset=data_start + tensor.offset) for name, tensor in tensors.items()
    }


def _parse_tensor(cursor: Cursor, index: int, alignment: int, part: int) -> StoredTensor:
    """One description; its `offset` still counts from the start of the data."""
    name = cursor.name(f"name of tensor {index}", MAX_TENSOR_NAME_BYTES)
    num_dimensions = cursor.u32(f"number of dimensions of tensor {name}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.error(
            f"tensor {name} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed"
        )
    dimensions = [cursor.u64(f"dimension {i} of tensor {name}") for i in range(num_dimensions)]
    if 0 in dimensions:
        raise cursor.error(f"tensor {name} has a zero dimension: {dimensions}")
    tensor_type = _supported_type(cursor, name, cursor.u32(f"type of tensor {name}"))
    offset = cursor.u64(f"offset of tensor {name}")
    if dimensions[0] % tensor_type.block_elements:
        raise cursor.error(
            f"tensor {name} has rows of {dimensions[0]} weights, not a multiple of "
            f"{tensor_type.name}'s block of {tensor_type.block_elements}"
        )
    nbytes = math.prod(dimensions) // tensor_type.block_elements * tensor_type.block_bytes
    if nbytes > cursor.size:
        raise cursor.error(
            f"tensor {name} with dimensions {dimensions} of {tensor_type.name} takes {nbytes} "
            f"bytes, but the file has {cursor.size}: truncated or corrupt"
        )
    if offset % alignment:
        raise cursor.error(
            f"tensor {name} is at offset {offset}, not a multiple of the alignment {alignment}"
        )
    return StoredTensor(name, tuple(reversed(dimensions)), tensor_type, offset, part)


def _supported_type(cursor: Cursor, name: str, type_number: int) -> TensorType:
    if type_number >= FIRST_OWN_TYPE or type_number not in set(TensorType):
        raise cursor.error(f"tensor {name} has unknown type {type_number}")
    tensor_type = TensorType(type_number)
    if tensor_type in REFUSALS:
        raise cursor.error(f"tensor {name} has type {tensor_type.name}, {REFUSALS[tensor_type]}")
    if tensor_type not in SUPPORTED_TYPES:
        supported = " ".join(t.name for t in sorted(SUPPORTED_TYPES))
        raise cursor.error(
            f"tensor {name} has type {tensor_type.name}, which is not supported; "
            f"supported are {supported}"
        )
    return tensor_type


def _with_long_blocks(tensors: dict[str, StoredTensor], size: int) -> dict[str, StoredTensor]:
    """The tensors, with the blocks that they have: of Q2_0 there are two kinds with one number.

    llama.cpp's are of 64 weights, those of PrismML's Bonsai models of 128, which take less room:
    what would be of the first kind too long for its place, up to the next tensor, is of the other.
    """
    ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    begins = [*(tensor.offset for tensor in ordered), size]
    if not any(
        tensor.type is TensorType.Q2_0 and tensor.offset + tensor.nbytes > end
        for tensor, end in zip(ordered, begins[1:], strict=True)
    ):
        return tensors
    long = TensorType.Q2_0_G128
    return {
        name: replace(tensor, type=long)
        if tensor.type is TensorType.Q2_0 and tensor.shape[-1] % long.block_elements == 0
        else tensor
        for name, tensor in tensors.items()
    }


def _check_placement(cursor: Cursor, tensors: dict[str, StoredTensor]) -> None:
    previous: StoredTensor | None = None
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        end = tensor.offset + tensor.nbytes
        if end > cursor.size:
            raise cursor.error(
                f"tensor {tensor.name} ends at byte {end}, but the file has {cursor.size}: "
                "truncated or corrupt"
            )
        if previous is not None and tensor.offset < previous.offset + previous.nbytes:
            raise cursor.error(f"tensors {previous.name} and {tensor.name} overlap")
        previous = tensor
