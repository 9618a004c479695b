"""Writes GGUF files for tests: valid ones, and pieces to build broken ones from."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from caudal.formats.tensor_types import TensorType

_SCALARS: dict[str, tuple[int, str]] = {
    "uint8": (0, "<B"),
    "int8": (1, "<b"),
    "uint16": (2, "<H"),
    "int16": (3, "<h"),
    "uint32": (4, "<I"),
    "int32": (5, "<i"),
    "float32": (6, "<f"),
    "bool": (7, "<?"),
    "uint64": (10, "<Q"),
    "int64": (11, "<q"),
    "float64": (12, "<d"),
}
_NUMPY_TYPES: dict[str, str] = {
    "uint8": "uint8",
    "int8": "int8",
    "uint16": "uint16",
    "int16": "int16",
    "uint32": "uint32",
    "int32": "int32",
    "float32": "float32",
    "bool": "bool",
    "uint64": "uint64",
    "int64": "int64",
    "float64": "float64",
}


@dataclass(frozen=True)
class Typed:
    """A metadata value with the type it is to have in the file, e.g. `Typed("uint8", 3)`."""

    type: str
    value: Any


@dataclass(frozen=True)
class Raw:
    """Bytes written in a value's place: its type number first, then whatever a test wants."""

    data: bytes


Tensor = tuple[TensorType, Sequence[int], bytes]


def string(text: str | bytes) -> bytes:
    """A GGUF string: length in eight bytes, then the bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def encode_value(value: Any) -> bytes:
    """A value's type number and bytes.

    Plain Python values get the type that converters use: bool, uint32 (int32 if negative),
    float32, string; lists become arrays of the same; numpy arrays keep their type.
    """
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, Typed):
        number, layout = _SCALARS[value.type]
        return struct.pack("<I", number) + struct.pack(layout, value.value)
    if isinstance(value, bool):
        return encode_value(Typed("bool", value))
    if isinstance(value, int):
        return encode_value(Typed("uint32" if value >= 0 else "int32", value))
    if isinstance(value, float):
        return encode_value(Typed("float32", value))
    if isinstance(value, str | bytes):
        return struct.pack("<I", 8) + string(value)
    return struct.pack("<I", 9) + _encode_array(value)


def _encode_array(values: Sequence[Any] | npt.NDArray[Any]) -> bytes:
    if not isinstance(values, np.ndarray):
        if not values or isinstance(values[0], str | bytes):
            return struct.pack("<IQ", 8, len(values)) + b"".join(string(v) for v in values)
        kind = "float32" if isinstance(values[0], float) else "int32"
        values = np.array(values, "bool" if isinstance(values[0], bool) else kind)
    number = next(_SCALARS[name][0] for name, t in _NUMPY_TYPES.items() if values.dtype == t)
    return struct.pack("<IQ", number, values.size) + values.tobytes()


def encode_tensor_info(
    name: str, dimensions: Sequence[int], type_number: int, offset: int
) -> bytes:
    """A tensor's description; dimensions in ggml's order, the contiguous one first."""
    return (
        string(name)
        + struct.pack("<I", len(dimensions))
        + b"".join(struct.pack("<Q", d) for d in dimensions)
        + struct.pack("<IQ", type_number, offset)
    )


def encode_gguf(
    metadata: Mapping[str, Any] | Sequence[tuple[str | bytes, Any]],
    tensors: Mapping[str, Tensor],
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file; `metadata` may be pairs, so that a key can appear twice.

    `alignment` is what the tensors are laid out by; `general.alignment` says so only if the
    metadata holds it.
    """
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    infos, data = b"", b""
    for name, (tensor_type, shape, raw) in tensors.items():
        infos += encode_tensor_info(name, tuple(reversed(shape)), int(tensor_type), len(data))
        data += raw + bytes(-len(raw) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    head += b"".join(string(key) + encode_value(value) for key, value in pairs) + infos
    return head + bytes(-len(head) % alignment) + data


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any] | Sequence[tuple[str | bytes, Any]],
    tensors: Mapping[str, Tensor] | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
) -> Path:
    """Write a file: `tensors` maps a name to (type, shape in numpy order, bytes)."""
    path.write_bytes(encode_gguf(metadata, tensors or {}, version=version, alignment=alignment))
    return path


def random_tensor(
    rng: np.random.Generator, tensor_type: TensorType, shape: Sequence[int], scale: float = 0.05
) -> Tensor:
    """A tensor of random weights of about `scale`, in any supported type.

    Quantised blocks are random bytes with their scale fields set to small finite numbers, so that
    every bit pattern of the weights occurs.
    """
    blocks = int(np.prod(shape)) // tensor_type.block_elements
    if shape[-1] % tensor_type.block_elements:
        raise ValueError(f"rows of {shape[-1]} are not whole blocks of {tensor_type.name}")
    count = int(np.prod(shape))
    if tensor_type is TensorType.F32:
        return tensor_type, shape, rng.normal(0, scale, count).astype("<f4").tobytes()
    if tensor_type is TensorType.F16:
        return tensor_type, shape, rng.normal(0, scale, count).astype("<f2").tobytes()
    if tensor_type is TensorType.BF16:
        wide = rng.normal(0, scale, count).astype("<f4").view("<u4")
        return tensor_type, shape, (wide >> 16).astype("<u2").tobytes()
    raw = rng.integers(0, 256, (blocks, tensor_type.block_bytes), dtype=np.uint8)
    if tensor_type is TensorType.MXFP4:
        raw[:, 0] = 127 + int(np.log2(scale / 3)) + rng.integers(0, 2, blocks)
    if tensor_type is TensorType.NVFP4:
        exponents = 7 + int(np.log2(scale / 3)) + rng.integers(0, 2, (blocks, 4))
        raw[:, :4] = exponents * 8 + rng.integers(0, 8, (blocks, 4))
    if tensor_type is TensorType.IQ1_M:
        _put_scattered_scales(raw, scale / 8 * rng.uniform(0.5, 1.5, blocks))
    negated = rng.choice((-1, 1), blocks)  # all weights of the block
    for offset, spread in SCALE_FIELDS.get(tensor_type, ()):
        values = (negated * scale / spread * rng.uniform(0.5, 1.5, blocks)).astype("<f2")
        raw[:, offset : offset + 2] = values.view(np.uint8).reshape(blocks, 2)
    return tensor_type, shape, raw.tobytes()


def _put_scattered_scales(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[Any]) -> None:
    """Set the float16 scales of IQ1_M, whose four digits are on top of the block's last words."""
    words = blocks[:, 48:].copy().view("<u2")
    bits = scales.astype("<f2").view("<u2")[:, None]
    words &= 0x0FFF
    words |= (bits >> np.array([0, 4, 8, 12], "<u2") & 15) << 12
    blocks[:, 48:] = words.view(np.uint8)


# Where each block keeps its float16 fields, and what divides `scale` to give the field's size:
# about the magnitude that the integers it multiplies have. Negative: the minimum of an asymmetric
# type that is added rather than subtracted.
SCALE_FIELDS: dict[TensorType, tuple[tuple[int, float], ...]] = {
    TensorType.Q8_0: ((0, 74),),
    TensorType.Q4_0: ((0, 5),),
    TensorType.Q4_1: ((0, 5), (2, -0.7)),
    TensorType.Q5_0: ((0, 9),),
    TensorType.Q5_1: ((0, 9), (2, -0.6)),
    TensorType.Q2_K: ((80, 12), (82, 8)),
    TensorType.Q3_K: ((108, 40),),
    TensorType.Q4_K: ((0, 250), (2, 33)),
    TensorType.Q5_K: ((0, 500), (2, 33)),
    TensorType.Q6_K: ((208, 1200),),
    TensorType.IQ4_NL: ((0, 65),),
    TensorType.IQ4_XS: ((0, 1100),),
    TensorType.IQ1_S: ((0, 8),),
    TensorType.IQ2_XXS: ((0, 40),),
    TensorType.IQ2_XS: ((0, 40),),
    TensorType.IQ2_S: ((0, 40),),
    TensorType.IQ3_XXS: ((0, 120),),
    TensorType.IQ3_S: ((0, 130),),
    TensorType.TQ1_0: ((52, 0.8),),
    TensorType.TQ2_0: ((64, 1),),
    TensorType.Q1_0: ((0, 1),),
    TensorType.Q2_0: ((0, 1),),
    TensorType.Q2_0_G128: ((0, 1),),
}
