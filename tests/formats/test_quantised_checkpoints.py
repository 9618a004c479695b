"""Quantised checkpoints mean exactly the numbers that their methods' definitions give."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caudal._native import kernels
from caudal.errors import ModelLoadError
from caudal.formats.huggingface.checkpoint import Checkpoint
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.methods import find_method
from caudal.formats.huggingface.rows import Rows, in_order
from caudal.formats.safetensors import SafetensorsFile
from caudal.formats.tensor_types import TensorType
from references.checks import Runner, open_reference
from references.reference import Recorded
from references.weights import random_weight, write_folder
from support.safetensors_writer import Bits, as_bfloat16, write_safetensors

OUTPUTS, INPUTS = 48, 256
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
Arrays = Mapping[str, NDArray[Any] | Bits]
rng = np.random.default_rng(5)


def opened(
    folder: Path, settings: Mapping[str, Any], tensors: Mapping[str, Any]
) -> dict[str, Rows]:
    """All tensors of a checkpoint by the names they would have without its method."""
    plain = {"norm.weight": np.ones(4, np.float32), "skipped.weight": np.ones((2, 4), np.float32)}
    path = write_safetensors(folder / "model.safetensors", {**plain, **tensors})
    file = SafetensorsFile.open(path)
    checkpoint = Checkpoint(str(path), dict.fromkeys(file.entries, file))
    method = find_method(Config("config.json", {"quantization_config": settings}))
    rows = {name: method.rows(checkpoint, name) for name in method.names(checkpoint)}
    assert rows.keys() >= plain.keys()
    return {name: each for name, each in rows.items() if name not in plain}


def weight(folder: Path, settings: Mapping[str, Any], tensors: Arrays) -> Rows:
    """The only quantised matrix, `m.weight`."""
    rows = opened(folder, settings, {f"m.{part}": array for part, array in tensors.items()})
    assert list(rows) == ["m.weight"]
    return rows["m.weight"]


def values(rows: Rows) -> NDArray[np.float32]:
    """A tensor's numbers, as kernels take them when rows are read in pieces."""
    count = rows.info.rows
    first = rows.read(0, count // 2)
    data = np.concatenate([first, rows.read(count // 2, count - count // 2)])
    assert data.shape == (count, rows.info.row_bytes)
    return kernels.dequantize(int(rows.type), np.ascontiguousarray(data).reshape(-1)).reshape(
        rows.shape
    )


def words(codes: NDArray[Any], bits: int = 4) -> NDArray[np.int32]:
    """Neighbours along the last axis in words, the first in the lowest bits."""
    per_word = 32 // bits
    grouped = codes.reshape(*codes.shape[:-1], -1, per_word).astype(np.uint64)
    shifts = np.arange(per_word, dtype=np.uint64) * np.uint64(bits)
    return (grouped << shifts).sum(-1).astype(np.uint32).view(np.int32)


def bfloat(shape: tuple[int, ...], low: float = 0.001, high: float = 0.02) -> NDArray[np.float32]:
    """Positive numbers that BF16 holds."""
    return (rng.uniform(low, high, shape).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(
        np.float32
    )


def integers(bits: int, group: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Random codes [outputs, inputs], half scales and zeros [outputs, groups]."""
    codes = rng.integers(0, 1 << bits, (OUTPUTS, INPUTS))
    scales = rng.uniform(0.001, 0.02, (OUTPUTS, INPUTS // group)).astype(np.float16)
    return codes, scales, rng.integers(1, 1 << bits, scales.shape)


def by_group(codes: NDArray[Any], scales: NDArray[Any], zeros: Any) -> NDArray[np.float32]:
    group = codes.shape[1] // scales.shape[1]
    spread = [np.repeat(np.broadcast_to(each, scales.shape), group, 1) for each in (scales, zeros)]
    return (codes - spread[1]).astype(np.float32) * spread[0].astype(np.float32)


def gptq(codes: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any], bits: int) -> Arrays:
    mask = (1 << bits) - 1
    return {
        "qweight": words(codes, bits).T,
        "scales": scales.T,
        "qzeros": words((zeros.T - 1) & mask, bits),
    }


@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, 64), (4, 32), (4, INPUTS), (2, 64)])
def test_gptq(tmp_path: Path, bits: int, group: int) -> None:
    codes, scales, zeros = integers(bits, group)
    expected = by_group(codes, scales, zeros)
    settings = {"quant_method": "gptq", "bits": bits, "group_size": group}
    tensors = dict(gptq(codes, scales, zeros, bits))
    tensors["g_idx"] = (np.arange(INPUTS) // group).astype(np.int32)
    rows = weight(tmp_path, settings, tensors)
    assert rows.type.name == f"INT4_G{min(group, 128)}"
    np.testing.assert_array_equal(values(rows), expected)
    tensors["qzeros"] = words(zeros.T, bits)
    rows = weight(tmp_path, settings | {"checkpoint_format": "gptq_v2"}, tensors)
    np.testing.assert_array_equal(values(rows), expected)


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (2, 64), (4, 8)])
def test_gptq_with_inputs_in_any_order(tmp_path: Path, bits: int, group: int) -> None:
    codes, scales, zeros = integers(bits, group)
    owners = rng.permutation(np.arange(INPUTS) // group)
    tensors = gptq(codes, scales, zeros, bits) | {"g_idx": owners.astype(np.int32)}
    rows = weight(tmp_path, {"quant_method": "gptq", "bits": bits, "desc_act": True}, tensors)
    expected = (codes - zeros[:, owners]).astype(np.float32) * scales[:, owners].astype(np.float32)
    order = rows.column_order
    if group < 32:  # which no type of blocks has
        assert (rows.type, order) == (TensorType.F32, None)
    else:
        assert rows.type.name == f"INT4_G{group}"
        assert order is not None
        np.testing.assert_array_equal(values(rows), expected[:, order])
    np.testing.assert_array_equal(values(in_order(rows)), expected)


def test_gptq_of_eight_bits(tmp_path: Path) -> None:
    codes, scales, zeros = integers(8, 64)
    zeros[:] = 128
    rows = weight(tmp_path, {"quant_method": "gptq", "bits": 8}, gptq(codes, scales, zeros, 8))
    assert rows.type is TensorType.INT8_G32
    np.testing.assert_array_equal(values(rows), by_group(codes, scales, zeros))


def test_awq(tmp_path: Path) -> None:
    codes, scales, zeros = integers(4, 128)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    tensors = {
        "qweight": words(codes.T.reshape(INPUTS, -1, 8)[..., order].reshape(INPUTS, -1)),
        "qzeros": words(zeros.T.reshape(2, -1, 8)[..., order].reshape(2, -1)),
        "scales": scales.T,
    }
    rows = weight(tmp_path, {"quant_method": "awq", "bits": 4, "version": "gemm"}, tensors)
    assert rows.type is TensorType.INT4_G128
    np.testing.assert_array_equal(values(rows), by_group(codes, scales, zeros))


COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {}}}}


@pytest.mark.parametrize("asymmetric", [False, True])
def test_packed_integers_of_compressed_tensors(tmp_path: Path, asymmetric: bool) -> None:
    codes, _, zeros = integers(4, 128)
    scales = bfloat((OUTPUTS, 2))
    tensors = {
        "weight_packed": words(codes),
        "weight_scale": as_bfloat16(scales),
        "weight_shape": np.array([OUTPUTS, INPUTS]),
    }
    if asymmetric:
        tensors["weight_zero_point"] = words(zeros.T).T
    settings = COMPRESSED | {"format": "pack-quantized", "ignore": ["skipped"]}
    rows = weight(tmp_path, settings, tensors)
    assert rows.type is TensorType.INT4_G128
    np.testing.assert_array_equal(values(rows), by_group(codes, scales, zeros if asymmetric else 8))
    # Scales that half precision doesn't hold are kept as floats.
    scales = bfloat((OUTPUTS, 2), 1e-9, 1e-8)
    rows = weight(tmp_path, settings, tensors | {"weight_scale": as_bfloat16(scales)})
    assert rows.type is TensorType.INT8_G32
    np.testing.assert_array_equal(values(rows), by_group(codes, scales, zeros if asymmetric else 8))


@pytest.mark.parametrize("asymmetric", [False, True])
def test_bytes_of_compressed_tensors(tmp_path: Path, asymmetric: bool) -> None:
    codes = rng.integers(-128, 128, (OUTPUTS, INPUTS)).astype(np.int8)
    scales = rng.uniform(0.001, 0.02, (OUTPUTS, 1)).astype(np.float32)
    points = rng.integers(-128, 128, (OUTPUTS, 1)).astype(np.int8) * np.int8(asymmetric)
    tensors = {"weight": codes, "weight_scale": scales, "input_scale": np.ones(1, np.float32)}
    if asymmetric:
        tensors["weight_zero_point"] = points
    rows = weight(tmp_path, COMPRESSED | {"format": "int-quantized"}, tensors)
    assert rows.type is (TensorType.F32 if asymmetric else TensorType.INT8_ROW)
    expected = by_group(codes.astype(np.int32), scales, points.astype(np.int32))
    np.testing.assert_array_equal(values(rows), expected)


def fp8_numbers(bits: NDArray[np.uint8]) -> NDArray[np.float32]:
    """E4M3 by the definition."""
    exponent, mantissa = (bits >> 3 & 15).astype(int), (bits & 7) / 8
    magnitude = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7))
    return (np.where(bits > 127, -1, 1) * magnitude).astype(np.float32)


def fp8(shape: tuple[int, ...] = (OUTPUTS, INPUTS)) -> NDArray[np.uint8]:
    bits = rng.integers(0, 256, shape, np.uint8)
    return np.where(bits & 127 == 127, 0, bits).astype(np.uint8)


@pytest.mark.parametrize("inputs", [256, 160])
@pytest.mark.parametrize("scales", ["tensor", "rows"])
def test_fp8(tmp_path: Path, scales: str, inputs: int) -> None:
    bits = fp8((OUTPUTS, inputs))
    scale = bfloat((1,) if scales == "tensor" else (OUTPUTS, 1))
    tensors = {"weight": Bits("F8_E4M3", bits), "weight_scale": as_bfloat16(scale)}
    for settings in (
        {"quant_method": "fp8"},
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        COMPRESSED | {"format": "float-quantized"},
    ):
        rows = weight(tmp_path, settings, tensors)
        assert rows.type is (TensorType.FP8_G128 if inputs == 256 else TensorType.FP8_G32)
        np.testing.assert_array_equal(values(rows), fp8_numbers(bits) * scale)


def test_fp8_of_blocks(tmp_path: Path) -> None:
    outputs, inputs = 200, 384  # the last block has fewer rows
    bits = fp8((outputs, inputs))
    scale = rng.uniform(0.001, 0.02, (2, 3)).astype(np.float32)
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    tensors = {"weight": Bits("F8_E4M3", bits), "weight_scale_inv": scale}
    rows = weight(tmp_path, settings, tensors)
    spread = np.repeat(np.repeat(scale, 128, 0)[:outputs], 128, 1)
    np.testing.assert_array_equal(values(rows), fp8_numbers(bits) * spread)
    bits[7, 7] = 0xFF
    rows = weight(tmp_path, settings, tensors | {"weight": Bits("F8_E4M3", bits)})
    with pytest.raises(ModelLoadError, match=r"m\.weight holds numbers that are none"):
        rows.read(0, 1)


@pytest.mark.parametrize("writer", ["modelopt", "compressed-tensors"])
def test_nvfp4(tmp_path: Path, writer: str) -> None:
    codes = rng.integers(0, 16, (OUTPUTS, INPUTS), np.uint8)
    scales = rng.integers(0, 0x7F, (OUTPUTS, INPUTS // 16), np.uint8)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    factor = np.float32(0.0173)
    if writer == "modelopt":
        settings = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        tensors = {"weight": packed, "weight_scale_2": np.array(factor)}
    else:
        settings = COMPRESSED | {"format": "nvfp4-pack-quantized"}
        inverse = np.float32(57.5)
        factor = np.float32(1) / inverse
        tensors = {"weight_packed": packed, "weight_global_scale": np.array([inverse])}
    rows = weight(tmp_path, settings, tensors | {"weight_scale": Bits("F8_E4M3", scales)})
    assert rows.type is TensorType.NVFP4_ROW
    expected = E2M1[codes] * np.repeat(fp8_numbers(scales), 16, 1) * factor
    np.testing.assert_array_equal(values(rows), expected)


def mxfp4(shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    codes = rng.integers(0, 16, (*shape, 32), np.uint8)
    exponents = rng.integers(110, 130, shape, np.uint8)
    numbers = E2M1[codes] * np.exp2(exponents.astype(np.float32) - 127)[..., None]
    return codes[..., ::2] | codes[..., 1::2] << 4, exponents, numbers


def test_mxfp4_of_experts(tmp_path: Path) -> None:
    blocks, scales, numbers = mxfp4((3, OUTPUTS, 2))
    tensors = {"e.up_blocks": blocks, "e.up_scales": scales, "e.up_bias": np.ones(2, np.float32)}
    rows = opened(tmp_path, {"quant_method": "mxfp4"}, tensors)
    assert rows.keys() == {"e.up_blocks", "e.up_bias"}
    assert rows["e.up_blocks"].type is TensorType.MXFP4
    np.testing.assert_array_equal(values(rows["e.up_blocks"]), numbers.reshape(3, OUTPUTS, 64))


def test_gpt_oss_computes_the_same_in_mxfp4(tmp_path: Path) -> None:
    recorded = Recorded.read("gpt_oss")
    plain = {name: random_weight(name, *spread) for name, spread in recorded.tensors.items()}
    packed = dict(plain)
    for name in [name for name in plain if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = packed.pop(name).shape
        blocks, exponents, numbers = mxfp4((experts, rows, columns // 32))
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": exponents - 6}
        transposed = numbers.reshape(experts, rows, columns).swapaxes(1, 2)
        plain[name] = np.ascontiguousarray(transposed / 2**6)
    answers = []
    for method, tensors, kind in (
        ({}, plain, TensorType.F32),
        ({"quantization_config": {"quant_method": "mxfp4"}}, packed, TensorType.MXFP4),
    ):
        path = write_folder(recorded, tmp_path / kind.name)
        write_safetensors(path / "model.safetensors", tensors)
        (path / "config.json").write_text(json.dumps({**recorded.config, **method}))
        with open_reference(path) as file:
            assert file.tensor("blk.1.ffn_up_exps.weight").type is kind
            runner = Runner(file)
            answers.append(runner.scores())
            runner.close()
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-4)


def test_mxfp4_of_compressed_tensors(tmp_path: Path) -> None:
    blocks, scales, numbers = mxfp4((OUTPUTS, 2))
    tensors = {"weight_packed": blocks.reshape(OUTPUTS, -1), "weight_scale": scales}
    rows = weight(tmp_path, COMPRESSED | {"format": "mxfp4-pack-quantized"}, tensors)
    np.testing.assert_array_equal(values(rows), numbers.reshape(OUTPUTS, 64))


NF4 = np.array(
    [
        *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
    ],
    np.float32,
)


@pytest.mark.parametrize("nested", [False, True])
def test_nf4_of_bitsandbytes(tmp_path: Path, nested: bool) -> None:
    codes = rng.integers(0, 16, OUTPUTS * INPUTS, np.uint8)
    count = OUTPUTS * INPUTS // 64
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [OUTPUTS, INPUTS]}
    scales = rng.uniform(0.01, 0.2, count).astype(np.float32)
    tensors = {
        "weight": (codes[::2] << 4 | codes[1::2]).reshape(-1, 1),
        "weight.absmax": scales,
        "weight.quant_map": NF4,
    }
    if nested:
        table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        largest = rng.uniform(0.01, 0.2, 1).astype(np.float32)
        absmax = rng.integers(0, 256, count, np.uint8)
        state |= {"nested_blocksize": 256, "nested_offset": 0.3}
        scales = table[absmax] * largest + np.float32(0.3)
        tensors |= {
            "weight.absmax": absmax,
            "weight.nested_absmax": largest,
            "weight.nested_quant_map": table,
        }
    tensors["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(
        json.dumps(state).encode(), np.uint8
    )
    rows = weight(tmp_path, {"quant_method": "bitsandbytes", "load_in_4bit": True}, tensors)
    assert rows.type is TensorType.NF4_G64
    expected = NF4[codes] * np.repeat(scales, 64)
    np.testing.assert_array_equal(values(rows), expected.reshape(OUTPUTS, INPUTS))


def test_bytes_of_bitsandbytes(tmp_path: Path) -> None:
    codes = rng.integers(-127, 128, (OUTPUTS, INPUTS)).astype(np.int8)
    largest = rng.uniform(0.01, 0.2, OUTPUTS).astype(np.float32)
    tensors = {"weight": codes, "SCB": largest, "weight_format": np.zeros(1, np.uint8)}
    rows = weight(tmp_path, {"quant_method": "bitsandbytes", "load_in_8bit": True}, tensors)
    expected = codes * (largest / np.float32(127))[:, None]
    np.testing.assert_array_equal(values(rows), expected)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"quant_method": "quip"}, "quant_method 'quip' is not supported; .* gptq"),
    "gptq bits": ({"quant_method": "gptq", "bits": 3}, "GPTQ of 3 bits"),
    "gptq format": (
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        "checkpoint_format 'marlin' of GPTQ",
    ),
    "awq version": ({"quant_method": "awq", "version": "gemv"}, "AWQ of version 'gemv'"),
    "format": (COMPRESSED | {"format": "marlin-24"}, "format 'marlin-24' of compressed-tensors"),
    "sparse": (
        COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}},
        "compressed-tensors with a sparsity_config",
    ),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "'W4A8_AWQ' of ModelOpt"),
    "fp4": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
        "bnb_4bit_quant_type 'fp4'",
    ),
    "block": ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_methods_that_are_refused_by_name(tmp_path: Path, case: str) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(ModelLoadError, match=message):
        opened(tmp_path, settings, {})


def test_parts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    codes, scales, zeros = integers(4, 128)
    tensors = gptq(codes, scales, zeros, 4)
    settings = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(ModelLoadError, match=r"tensor m\.qzeros is missing"):
        weight(tmp_path, settings, {key: tensors[key] for key in ("qweight", "scales")})
    with pytest.raises(ModelLoadError, match=r"m\.qzeros is I32 of shape \[1, 6\], but by"):
        weight(tmp_path, settings, {**tensors, "qzeros": tensors["qzeros"][:1]})
    with pytest.raises(ModelLoadError, match=r"m\.scales has 3 groups, which don't divide 256"):
        weight(
            tmp_path,
            settings,
            {
                **tensors,
                "scales": np.ones((3, OUTPUTS), np.float16),
                "qzeros": np.ones((3, OUTPUTS // 8), np.int32),
            },
        )
    with pytest.raises(ModelLoadError, match=r"m\.g_idx has groups that aren't 0 to 1"):
        weight(tmp_path, settings, {**tensors, "g_idx": np.full(INPUTS, 2, np.int32)})
    with pytest.raises(ModelLoadError, match=r"m\.g_idx is I32 of shape \[64\], but by"):
        weight(tmp_path, settings, {**tensors, "g_idx": np.zeros(64, np.int32)})
    tensors = {"weight_packed": words(codes), "weight_scale": scales}
    with pytest.raises(ModelLoadError, match=r"tensor m\.weight_shape is missing"):
        weight(tmp_path, COMPRESSED, tensors)
    with pytest.raises(ModelLoadError, match=r"\[48, 7\] are neither of 4 nor of 8 bits"):
        weight(tmp_path, COMPRESSED, {**tensors, "weight_shape": np.array([OUTPUTS, 7])})
