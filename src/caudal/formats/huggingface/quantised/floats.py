"""Weights as small floats: FP8 as several tools store it, NVFP4, and MXFP4 as gpt-oss has it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.checkpoint import Checkpoint
from caudal.formats.huggingface.quantised.blocks import Codes, fp8_rows, mxfp4_rows, nvfp4_rows
from caudal.formats.huggingface.quantised.modules import WEIGHT, Module, ModuleMethod
from caudal.formats.huggingface.rows import Floats, Rows
from caudal.formats.model_folder import JsonObject

_FP8 = "F8_E4M3"
_E8M0 = ("U8", "F8_E8M0")


class FP8(ModuleMethod):
    """E4M3 with a scale for the tensor, for rows, or for blocks of 128 × 128 (`weight_scale_inv`,
    which multiplies in spite of its name).
    """

    marks = ("weight_scale", "weight_scale_inv")
    parts = ("weight",)
    unused = ("input_scale", "activation_scale", "input_scale_ub")

    def __init__(self, settings: JsonObject) -> None:
        self._block = block_shape(settings, "weight_block_size")

    def weight(self, module: Module) -> Rows:
        """See `ModuleMethod.weight`."""
        scale = "weight_scale_inv" if "weight_scale_inv" in module else "weight_scale"
        return fp8_weight(module, scale, self._block)


class ModelOpt(ModuleMethod):
    """NVIDIA's ModelOpt: FP8, or NVFP4 with a second scale for the tensor."""

    marks = ("weight_scale",)
    parts = ("weight", "weight_scale_2")
    unused = ("input_scale", "k_scale", "v_scale")

    def __init__(self, settings: JsonObject) -> None:
        kind = settings.get("quant_algo", str)
        if kind not in ("FP8", "NVFP4"):
            raise ModelLoadError(
                settings.source,
                f"quant_algo {kind!r} of ModelOpt is not supported; it must be 'FP8' or 'NVFP4'",
            )

    def weight(self, module: Module) -> Rows:
        """See `ModuleMethod.weight`."""
        if module.dtype("weight") == _FP8:
            return fp8_weight(module, "weight_scale", (128, 128))
        factor = module.floats("weight_scale_2").reshape(-1)
        return nvfp4_weight(module, "weight", factor)


class GptOss:
    """MXFP4 of gpt-oss (a `Method`): `X_blocks`, [experts][outputs][groups][16], and `X_scales`.

    A matrix keeps the name `X_blocks`, for it has a row for each output, whereas `X`, which
    checkpoints have that aren't quantised, has a row for each input.
    """

    def __init__(self, settings: JsonObject) -> None:
        pass

    def names(self, checkpoint: Checkpoint) -> Iterable[str]:
        """See `Method.names`."""
        for name in checkpoint:
            if name.endswith("_blocks"):
                checkpoint.entry(_scales_of(name))
            if not (name.endswith("_scales") and _blocks_of(name) in checkpoint):
                yield name

    def rows(self, checkpoint: Checkpoint, name: str) -> Rows:
        """See `Method.rows`."""
        if not name.endswith("_blocks"):
            return checkpoint.rows(name)
        blocks, scales = checkpoint.entry(name), checkpoint.entry(_scales_of(name))
        *outer, groups, size = blocks.shape if len(blocks.shape) > 2 else (0, 0, 0)
        if blocks.dtype != "U8" or size != 16 or 0 in blocks.shape:
            raise checkpoint.error(
                name, f"is {blocks.dtype} of shape {list(blocks.shape)}, not U8 of [..., 16]"
            )
        if scales.dtype not in _E8M0 or scales.shape != blocks.shape[:-1]:
            raise checkpoint.error(
                _scales_of(name),
                f"is {scales.dtype} of shape {list(scales.shape)}, but must be U8 of "
                f"{list(blocks.shape[:-1])}",
            )
        return mxfp4_rows(
            name,
            (*outer, groups * 32),
            lambda: checkpoint.array(_scales_of(name)),
            lambda: checkpoint.array(name),
        )


def block_shape(settings: JsonObject, key: str) -> tuple[int, int] | None:
    """Rows and columns of a block that shares a scale; None where there are no blocks.

    Raises:
        ModelLoadError: It is something else.
    """
    sizes = settings.get(key, list, [])
    if not sizes:
        return None
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise ModelLoadError(settings.source, f"{key} must be two sizes, but is {sizes!r:.100}")
    return sizes[0], sizes[1]


def fp8_weight(module: Module, scale_part: str, block: tuple[int, int] | None) -> Rows:
    """E4M3 numbers with float scales: one, one for each row, or one for each block.

    Raises:
        ModelLoadError: The scales have a shape that fits neither.
    """
    shape = module.shape(WEIGHT)
    if module.dtype(WEIGHT) != _FP8 or len(shape) not in (2, 3) or 0 in shape:
        raise module.error(WEIGHT, f"is {module.dtype(WEIGHT)} of shape {list(shape)}, not {_FP8}")
    *stack, rows, columns = shape
    count = math.prod(stack)
    scales = module.floats(scale_part)
    down, across = block or (rows, columns)
    blocks = (-(-rows // down), -(-columns // across))
    if scales.size == count:  # one for each matrix
        by_row = np.repeat(scales.reshape(count), rows)[:, None]
        across = columns
    elif scales.size == count * rows:
        by_row = scales.reshape(count * rows, 1)
        across = columns
    elif block is not None and scales.shape == (*stack, *blocks):
        owners = np.arange(rows) // down
        by_row = scales.reshape(count, *blocks)[:, owners].reshape(count * rows, -1)
    else:
        raise module.error(
            scale_part, f"has the shape {list(scales.shape)}, which doesn't fit {list(shape)}"
        )

    def codes() -> Codes:
        bits: Codes = module.checkpoint.array(module.stored(WEIGHT))
        if np.any(bits & 0x7F == 0x7F):
            raise module.error(WEIGHT, "holds numbers that are none (NaN)")
        return bits

    return fp8_rows(module.name, shape, by_row, across, codes)


def nvfp4_weight(module: Module, packed: str, factors: Floats) -> Rows:
    """E2M1 numbers in bytes, with E4M3 scales (`weight_scale`) and float factors for those.

    Args:
        module: The module.
        packed: The part with the numbers.
        factors: One for each matrix.

    Raises:
        ModelLoadError: The parts' shapes don't fit together.
    """
    shape = module.shape(packed)
    if module.dtype(packed) != "U8" or len(shape) not in (2, 3) or 0 in shape:
        raise module.error(packed, f"is {module.dtype(packed)} of shape {list(shape)}, not U8")
    *stack, rows, half = shape
    if half % 32 != 0:
        raise module.error(packed, f"has rows of {2 * half} numbers, not a multiple of 64")
    module.expect("weight_scale", (_FP8,), (*stack, rows, half // 8))
    if factors.size != math.prod(stack):
        raise module.error(packed, f"has {factors.size} factors for a tensor of {list(shape)}")

    def scales() -> Codes:
        bits: Codes = module.checkpoint.array(module.stored("weight_scale"))
        if np.any(bits > 0x7E):
            raise module.error("weight_scale", "holds negative numbers, or some that are none")
        return bits

    return nvfp4_rows(
        module.name,
        (*stack, rows, 2 * half),
        np.repeat(factors.reshape(-1), rows),
        scales,
        lambda: module.checkpoint.array(module.stored(packed)),
    )


def mxfp4_weight(module: Module, packed: str) -> Rows:
    """E2M1 numbers in bytes, with exponents (`weight_scale`).

    Raises:
        ModelLoadError: The parts' shapes don't fit together.
    """
    shape = module.shape(packed)
    if module.dtype(packed) != "U8" or len(shape) not in (2, 3) or 0 in shape or shape[-1] % 16:
        raise module.error(
            packed, f"is {module.dtype(packed)} of shape {list(shape)}, not U8 of [..., 16 · n]"
        )
    module.expect("weight_scale", _E8M0, (*shape[:-1], shape[-1] // 16))
    return mxfp4_rows(
        module.name,
        (*shape[:-1], 2 * shape[-1]),
        lambda: module.checkpoint.array(module.stored("weight_scale")),
        lambda: module.checkpoint.array(module.stored(packed)),
    )


def _scales_of(blocks: str) -> str:
    return blocks.removesuffix("_blocks") + "_scales"


def _blocks_of(scales: str) -> str:
    return scales.removesuffix("_scales") + "_blocks"
