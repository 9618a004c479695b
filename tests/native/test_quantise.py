"""Floats to blocks: the bytes that llama.cpp's library gives, whoever computes them."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal._native import conversion, kernels
from caudal.formats.tensor_types import TensorType

# SHA-256 by type of what ggml's `ggml_quantize_chunk` makes of `numbers()`, without importances.
EXPECTED: dict[str, str] = json.loads(
    (Path(__file__).parents[1] / "data" / "quantised_by_llama_cpp.json").read_text()
)


def numbers() -> NDArray[np.float32]:
    """Numbers of shape (37, 768), the same everywhere: hashes of their places, most near zero."""
    place = np.arange(37 * 768, dtype=np.uint64)
    first, second = (
        (place * np.uint64(factor) % np.uint64(2**32)).astype(np.float64) / 2**32 - 0.5
        for factor in (2654435761, 40503 * 65537)
    )
    rows = np.exp2(np.arange(37) % 9 - 6.0)[:, None]
    return ((first * second).reshape(37, 768) * rows).astype(np.float32)


def converted(
    x: NDArray[np.generic], kind: TensorType, source: TensorType = TensorType.F32, **options: object
) -> NDArray[np.uint8]:
    raw = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    count = raw.size // source.block_bytes * source.block_elements
    out = np.empty(count // kind.block_elements * kind.block_bytes, np.uint8)
    assert conversion.convert(source, raw, kind, out, **options)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("name", EXPECTED)
def test_blocks_are_those_of_llama_cpp(name: str) -> None:
    kind, x = TensorType[name], numbers()
    for isa in kernels.instruction_sets():
        blocks = converted(x, kind, isa=isa)
        assert hashlib.sha256(blocks.tobytes()).hexdigest() == EXPECTED[name], isa
    np.testing.assert_array_equal(
        converted(np.tile(x, (9, 1)), kind, threads=3), np.tile(blocks, 9)
    )


def test_floats_of_16_bits_and_blocks_are_sources_too() -> None:
    x = numbers()
    halves = x.astype(np.float16)
    through_floats = converted(halves.astype(np.float32), TensorType.Q4_K)
    np.testing.assert_array_equal(
        converted(halves, TensorType.Q4_K, TensorType.F16), through_floats
    )
    eights = converted(x, TensorType.Q8_0)
    read = kernels.dequantize(TensorType.Q8_0, eights)
    np.testing.assert_array_equal(
        converted(eights, TensorType.Q4_K, TensorType.Q8_0), converted(read, TensorType.Q4_K)
    )


def test_what_is_no_number_is_told() -> None:
    x = numbers()
    out = np.empty(x.size * 2, np.uint8)
    for value in (np.nan, np.inf, 1e6):
        x[30, 700] = value
        assert not conversion.convert(
            TensorType.F32, x.reshape(-1).view(np.uint8), TensorType.F16, out
        )


def test_wrong_sizes_and_types_are_refused() -> None:
    x = np.zeros(1024, np.uint8)
    with pytest.raises(ValueError, match="aren't those of 256 elements of Q4_K"):
        conversion.convert(TensorType.F32, x, TensorType.Q4_K, np.empty(143, np.uint8))
    with pytest.raises(ValueError, match="IQ4_NL isn't written"):
        conversion.convert(TensorType.F32, x, TensorType.IQ4_NL, np.empty(144, np.uint8))
    assert not conversion.can_convert(TensorType.IQ4_NL)
