"""Every tensor type means exactly the numbers that its definition gives."""

import numpy as np
import pytest

from caudal._native import kernels
from support.quantised_weights import HALVES, TYPES, block_size, numbers, random_weights


@pytest.mark.parametrize("name", TYPES)
def test_dequantisation_is_exact(name: str) -> None:
    weights = random_weights(name, 8, 1024)
    got = kernels.dequantize(int(TYPES[name]), weights.reshape(-1))
    expected = numbers(name, weights)
    np.testing.assert_array_equal(got.view(np.uint32), expected.reshape(-1).view(np.uint32))


@pytest.mark.parametrize("name", HALVES)
def test_subnormal_and_zero_scales(name: str) -> None:
    weights = random_weights(name, 1, 1024).reshape(1024 // block_size(name), -1)
    for offset in HALVES[name]:
        halves = np.array([0x0001, 0x83FF, 0x0000, 0x8000] * 8, np.uint16)[: len(weights)]
        weights[:, offset : offset + 2] = halves[:, None].view(np.uint8)
    weights = weights.reshape(1, -1)
    got = kernels.dequantize(int(TYPES[name]), weights.reshape(-1))
    np.testing.assert_array_equal(got, numbers(name, weights).reshape(-1))


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_every_exponent_of_mxfp4() -> None:
    weights = random_weights("MXFP4", 1, 255 * 32).reshape(255, -1)
    weights[:, 0] = np.arange(255)  # 255 is reserved for NaN
    weights = weights.reshape(1, -1)
    got = kernels.dequantize(int(TYPES["MXFP4"]), weights.reshape(-1))
    np.testing.assert_array_equal(got, numbers("MXFP4", weights).reshape(-1))


def test_every_scale_of_nvfp4() -> None:
    weights = random_weights("NVFP4", 1, 64 * 64).reshape(64, -1)
    weights[:, :4] = np.arange(256).reshape(64, 4)
    weights[:, 4:] &= 0x77  # the reference has a negative zero for negative scales
    got = kernels.dequantize(int(TYPES["NVFP4"]), weights.reshape(-1))
    np.testing.assert_array_equal(got, numbers("NVFP4", weights).reshape(-1))


@pytest.mark.parametrize(
    "name", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
)
def test_every_entry_of_a_grid(name: str) -> None:
    """Indices are anywhere in the blocks; in so many random ones, all occur."""
    weights = random_weights(name, 64, 8192)
    got = kernels.dequantize(int(TYPES[name]), weights.reshape(-1))
    np.testing.assert_array_equal(got, numbers(name, weights).reshape(-1))


def test_an_unknown_type_is_refused_by_number() -> None:
    with pytest.raises(ValueError, match="tensor type 31 is not supported"):
        kernels.dequantize(31, np.zeros(64, np.uint8))


@pytest.mark.parametrize("isa", kernels.instruction_sets())
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_packed_rows_keep_the_exact_numbers(isa: str, name: str, rows: int) -> None:
    cols = max(block_size(name), 32) * 3
    weights = random_weights(name, rows, cols, seed=rows)
    matrix = kernels.Matrix(isa, int(TYPES[name]), weights.reshape(-1), rows, cols)
    expected = numbers(name, weights)
    for row in range(rows):
        np.testing.assert_array_equal(matrix.row(row), expected[row])


def test_packing_takes_few_more_bytes_than_the_file() -> None:
    """Or, where the file has grids or five codes in a byte, as many as the codes without them."""
    bits = {
        **{"IQ1_S": 2.625, "IQ1_M": 3.5625, "IQ2_XXS": 3.3125, "IQ2_XS": 3.5625, "IQ2_S": 3.5625},
        **{"IQ3_XXS": 4.3125, "IQ3_S": 4.3125, "TQ1_0": 2.0625, "TQ2_0": 2.0625, "Q1_0": 2.125},
    }
    for name in TYPES:
        weights = random_weights(name, 32, 1024)
        matrix = kernels.Matrix("portable", int(TYPES[name]), weights.reshape(-1), 32, 1024)
        if name in bits:
            assert matrix.bytes * 8 == bits[name] * 32 * 1024, name
        else:
            assert matrix.bytes <= weights.size * (1.2 if name == "Q2_K" else 1.04), name


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Q4_K matrix of 4 × 288.*whole blocks of 256"):
        kernels.Matrix("portable", int(TYPES["Q4_K"]), np.zeros(4096, np.uint8), 4, 288)


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 72 bytes, the tensor has 71"):
        kernels.Matrix("portable", int(TYPES["Q4_0"]), np.zeros(71, np.uint8), 4, 32)
