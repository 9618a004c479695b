"""compressed-tensors, which llm-compressor and vLLM write: what a module holds tells how it is."""

from __future__ import annotations

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.quantised.blocks import Codes, Integers, unpack_words
from caudal.formats.huggingface.quantised.floats import (
    block_shape,
    fp8_weight,
    mxfp4_weight,
    nvfp4_weight,
)
from caudal.formats.huggingface.quantised.gptq import scattered
from caudal.formats.huggingface.quantised.modules import WEIGHT, Module, ModuleMethod
from caudal.formats.huggingface.rows import Floats, Rows
from caudal.formats.model_folder import JsonObject

_FORMATS = (
    "dense",
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)


class CompressedTensors(ModuleMethod):
    """Packed integers of 4 or 8 bits, 8-bit integers, FP8, NVFP4 and MXFP4."""

    marks = ("weight_scale",)
    parts = (
        "weight",
        "weight_packed",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
        "weight_global_scale",
    )
    unused = (
        *("input_scale", "input_zero_point", "input_global_scale"),
        *("k_scale", "v_scale", "q_scale"),
    )

    def __init__(self, settings: JsonObject) -> None:
        kind = settings.get("format", str, "dense")
        if kind not in _FORMATS:
            raise ModelLoadError(
                settings.source,
                f"format {kind!r} of compressed-tensors is not supported; supported are "
                + ", ".join(map(repr, _FORMATS)),
            )
        if settings.get("sparsity_config", dict, {}).get("format", "dense") != "dense":
            raise ModelLoadError(
                settings.source, "compressed-tensors with a sparsity_config are not supported"
            )
        self._block: tuple[int, int] | None = None
        for name, group in settings.get("config_groups", dict, {}).items():
            if isinstance(group, dict) and isinstance(group.get("weights"), dict):
                weights = JsonObject(f"{settings.source}: {name}.weights", group["weights"])
                self._block = block_shape(weights, "block_structure") or self._block

    def weight(self, module: Module) -> Rows:
        """See `ModuleMethod.weight`."""
        if "weight_packed" in module:
            if module.dtype("weight_packed") in ("I32", "U32"):
                return _packed_integers(module)
            if "weight_global_scale" in module:
                # It divides: what multiplies is its inverse.
                divisors = module.floats("weight_global_scale").reshape(-1)
                if not np.all(divisors > 0):
                    raise module.error("weight_global_scale", "must be positive")
                factors = np.float32(1) / divisors
                return nvfp4_weight(module, "weight_packed", factors)
            return mxfp4_weight(module, "weight_packed")
        if module.dtype(WEIGHT) == "I8":
            return _bytes(module)
        return fp8_weight(module, "weight_scale", self._block)


def _packed_integers(module: Module) -> Rows:
    """Words of neighbouring inputs; codes are the integers plus half of what there is room for."""
    outputs, words = _two(module, "weight_packed")
    module.expect("weight_shape", ("I64", "I32"), (2,))
    shape = module.checkpoint.array(module.stored("weight_shape"))
    inputs = int(shape[1]) if shape[0] == outputs and 0 < shape[1] <= words * 8 else 0
    bits = next((bits for bits in (4, 8) if inputs and -(-inputs * bits // 32) == words), None)
    if bits is None:
        raise module.error(
            "weight_packed",
            f"has {outputs} × {words} words, which by weight_shape {shape.tolist()} are neither "
            "of 4 nor of 8 bits",
        )
    groups = _groups(module, outputs, inputs)
    zeros = np.full((1, 1), 1 << bits - 1, np.int16)
    if "weight_zero_point" in module:
        # Packed along the outputs.
        module.expect("weight_zero_point", ("I32", "U32"), (-(-outputs * bits // 32), groups))
        packed = module.checkpoint.array(module.stored("weight_zero_point"))
        zeros = unpack_words(packed.T, bits, outputs).T.astype(np.int16)

    def codes() -> Codes:
        return unpack_words(module.checkpoint.array(module.stored("weight_packed")), bits, inputs)

    scales = _scales(module, outputs, groups)
    if "weight_g_idx" in module:
        module.expect("weight_g_idx", ("I32", "I64"), (inputs,))
        every = np.broadcast_to(zeros, scales.shape)
        rows = scattered(module, "weight_g_idx", bits, codes, scales.T, every.T)
        if rows is not None:
            return rows
    return Integers(
        name=module.name, bits=bits, scales=scales, zeros=zeros, columns=inputs, codes=codes
    ).rows()


def _bytes(module: Module) -> Rows:
    """Signed bytes."""
    outputs, inputs = _two(module, WEIGHT)
    groups = _groups(module, outputs, inputs)
    zeros = np.full((1, 1), 128, np.int16)
    if "weight_zero_point" in module:
        module.expect("weight_zero_point", ("I8",), module.shape("weight_scale"))
        points = module.checkpoint.array(module.stored("weight_zero_point"))
        zeros = points.astype(np.int16).reshape(-1, groups) + np.int16(128)

    def codes() -> Codes:
        signed = module.checkpoint.array(module.stored(WEIGHT))
        unsigned: Codes = signed.view(np.uint8) ^ np.uint8(0x80)
        return unsigned

    return Integers(
        name=module.name,
        bits=8,
        scales=_scales(module, outputs, groups),
        zeros=zeros,
        columns=inputs,
        codes=codes,
    ).rows()


def _scales(module: Module, outputs: int, groups: int) -> Floats:
    """Scales of shape (outputs, groups)."""
    scales = module.floats("weight_scale").reshape(-1, groups)
    return np.ascontiguousarray(np.broadcast_to(scales, (outputs, groups)))


def _two(module: Module, part: str) -> tuple[int, int]:
    shape = module.shape(part)
    if len(shape) != 2 or 0 in shape:
        raise module.error(part, f"has the shape {list(shape)}, not that of a matrix")
    return shape[0], shape[1]


def _groups(module: Module, outputs: int, inputs: int) -> int:
    """Groups of a row: by the scales' shape."""
    shape = module.shape("weight_scale")
    if shape in ((), (1,), (1, 1), (outputs,)):
        return 1
    if len(shape) != 2 or shape[0] != outputs or not shape[1] or inputs % shape[1] != 0:
        raise module.error(
            "weight_scale", f"has the shape {list(shape)}, which doesn't fit {outputs} × {inputs}"
        )
    return shape[1]
