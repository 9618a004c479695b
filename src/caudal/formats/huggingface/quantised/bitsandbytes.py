"""bitsandbytes: NF4 of QLoRA (arXiv 2305.14314), and 8-bit integers of LLM.int8 (2208.07339)."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.quantised.blocks import Codes, Integers, float_blocks
from caudal.formats.huggingface.quantised.modules import WEIGHT, Module, ModuleMethod
from caudal.formats.huggingface.rows import Bytes, Floats, Made, Rows
from caudal.formats.model_folder import JsonObject
from caudal.formats.tensor_types import TensorType

_STATE = "weight.quant_state.bitsandbytes__nf4"
_BLOCK = 64


class BitsAndBytes(ModuleMethod):
    """NF4, with scales that may be quantised themselves; or 8-bit integers with a scale a row."""

    marks = ("weight.absmax", "SCB")
    parts = (
        *("weight", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"),
        *(_STATE, "weight_format"),
    )

    def __init__(self, settings: JsonObject) -> None:
        kind = settings.get("bnb_4bit_quant_type", str, "nf4")
        if settings.get("load_in_4bit", bool, False) and kind != "nf4":
            raise ModelLoadError(
                settings.source,
                f"bnb_4bit_quant_type {kind!r} of bitsandbytes is not supported; it must be 'nf4'",
            )

    def weight(self, module: Module) -> Rows:
        """See `ModuleMethod.weight`."""
        return _int8(module) if "SCB" in module else _nf4(module)


def _int8(module: Module) -> Rows:
    shape = module.shape(WEIGHT)
    if len(shape) != 2 or 0 in shape:
        raise module.error(WEIGHT, f"has the shape {list(shape)}, not that of a matrix")
    module.expect(WEIGHT, ("I8",), shape)
    module.expect("SCB", ("F32",), shape[:1])

    def codes() -> Codes:
        signed = module.checkpoint.array(module.stored(WEIGHT))
        unsigned: Codes = signed.view(np.uint8) ^ np.uint8(0x80)
        return unsigned

    return Integers(
        name=module.name,
        bits=8,
        scales=(module.floats("SCB") / np.float32(127)).reshape(-1, 1),
        zeros=np.full((1, 1), 128, np.int16),
        columns=shape[1],
        codes=codes,
    ).rows()


def _nf4(module: Module) -> Rows:
    state = _state(module)
    sizes = state.get("shape")
    if (
        not isinstance(sizes, list)
        or len(sizes) != 2
        or not all(type(size) is int and size > 0 for size in sizes)
    ):
        raise module.error(_STATE, f"has the shape {sizes!r:.100}, not that of a matrix")
    shape = (sizes[0], sizes[1])
    if state.get("quant_type") != "nf4" or state.get("blocksize") != _BLOCK:
        raise module.error(
            _STATE,
            f"has quant_type {state.get('quant_type')!r} and blocksize {state.get('blocksize')!r}; "
            f"supported are 'nf4' and {_BLOCK}",
        )
    if shape[1] % _BLOCK != 0:
        raise module.error(
            WEIGHT, f"has rows of {shape[1]} weights, not a multiple of the block of {_BLOCK}"
        )
    count = math.prod(shape)
    packed = module.shape(WEIGHT)
    if module.dtype(WEIGHT) != "U8" or math.prod(packed) != count // 2:
        raise module.error(
            WEIGHT, f"is {module.dtype(WEIGHT)} of {list(packed)}, not {count // 2} U8"
        )
    table = module.floats("weight.quant_map")
    if not np.array_equal(table, NF4):
        raise module.error("weight.quant_map", "isn't the table of NF4")

    def make() -> Bytes:
        nibbles = module.checkpoint.array(module.stored(WEIGHT)).reshape(shape[0], -1, _BLOCK // 2)
        scales = _scales(module, state, count // _BLOCK).reshape(shape[0], -1)
        # The first of two is in the upper half of a byte.
        bodies = (nibbles << 4 | nibbles >> 4).astype(np.uint8)
        return float_blocks(scales, bodies).reshape(shape[0], -1)

    return Made(module.name, TensorType.NF4_G64, shape, make)


def _state(module: Module) -> dict[str, Any]:
    try:
        state = json.loads(module.checkpoint.array(module.stored(_STATE)).tobytes())
    except (ValueError, RecursionError) as error:
        raise module.error(_STATE, f"is not valid JSON: {error}") from error
    if not isinstance(state, dict):
        raise module.error(_STATE, "is not a JSON object")
    return state


def _scales(module: Module, state: dict[str, Any], count: int) -> Floats:
    """The largest magnitude of each block."""
    if "weight.nested_absmax" not in module:
        module.expect("weight.absmax", ("F32",), (count,))
        return module.floats("weight.absmax")
    size, offset = state.get("nested_blocksize"), state.get("nested_offset", 0.0)
    if type(size) is not int or size < 1 or not isinstance(offset, int | float):
        raise module.error(_STATE, f"has nested_blocksize {size!r} and nested_offset {offset!r}")
    module.expect("weight.absmax", ("U8",), (count,))
    module.expect("weight.nested_absmax", ("F32",), (-(-count // size),))
    module.expect("weight.nested_quant_map", ("F32",), (256,))
    table = module.floats("weight.nested_quant_map")
    codes = module.checkpoint.array(module.stored("weight.absmax"))
    largest = np.repeat(module.floats("weight.nested_absmax"), size)[:count]
    scales: Floats = table[codes] * largest + np.float32(offset)
    return scales


NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""What the codes stand for, as csrc/quant/encoding.h has it."""
