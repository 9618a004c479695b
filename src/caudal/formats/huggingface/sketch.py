"""A decoder of which there is config.json alone, as a model that has the tensors it must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.families import find_family
from caudal.formats.huggingface.methods import find_method
from caudal.formats.huggingface.model import type_name
from caudal.formats.model_folder import JsonObject
from caudal.formats.sketched_model import SketchedModel, TypeOf
from caudal.formats.tensor_types import TensorType

FLOAT_TYPES = {
    "bfloat16": TensorType.BF16,
    "float16": TensorType.F16,
    "float32": TensorType.F32,
}
"""What config.json calls the type of a checkpoint's numbers."""

_NEVER_QUANTISED = ("token_embd.weight", "output.weight", "ffn_gate_inp.weight", "_norm.weight")


def sketch_decoder(config: Config, *, floats: TensorType | None = None) -> SketchedModel:
    """What a configuration says of a decoder, as a model without weights.

    Of a checkpoint that is quantised, the method's type is taken for all matrices of linear layers:
    which modules it leaves out is in names that only the weights' files have.

    Args:
        config: config.json.
        floats: The type of its numbers; None: as config.json says, BF16 where it doesn't.

    Raises:
        ModelLoadError: The family isn't supported, generates nothing, or asks for what isn't
            computed; or it is quantised by a method whose types aren't in config.json.
    """
    family = find_family(config)
    config = config.with_defaults(family.defaults)
    find_method(config)
    if family.is_encoder(config):
        raise config.error(
            "config.json alone doesn't say what an encoder computes; its weights' files do"
        )
    metadata = family.metadata(config)
    return SketchedModel(
        Path(config.source),
        metadata,
        {key: type_name(value) for key, value in metadata.items()},
        embedding=(config.positive("vocab_size"), config.positive("hidden_size")),
        made=family.made(config),
        declares=family.declares(config),
        rows=family.sizes(config),
        type_of=_types(config, floats or _floats_of(config)),
    )


def _floats_of(config: Config) -> TensorType:
    name = config.content.get("dtype") or config.content.get("torch_dtype") or "bfloat16"
    found = FLOAT_TYPES.get(str(name).removeprefix("torch."))
    if found is None:
        raise config.error(f"dtype is {name!r:.50}; known are {', '.join(FLOAT_TYPES)}")
    return found


def _types(config: Config, floats: TensorType) -> TypeOf:
    settings = config.part("quantization_config")
    quantised = _types_of_method(settings) if settings.content else ()
    only_experts = settings.content.get("quant_method") == "mxfp4"

    def type_of(name: str, shape: tuple[int, ...]) -> TensorType:
        if len(shape) == 1:
            return TensorType.F32
        if not quantised or not name.endswith(".weight") or name.endswith(_NEVER_QUANTISED):
            return floats
        if only_experts and not name.endswith("_exps.weight"):
            return floats
        if name.endswith("attn_k_b.weight"):
            return TensorType.F32  # rows and columns are exchanged, which blocks can't be
        fitting = (kind for kind in quantised if shape[-1] % kind.block_elements == 0)
        return next(fitting, TensorType.F32)

    return type_of


_FP8 = (TensorType.FP8_G128, TensorType.FP8_G32)


def _types_of_method(settings: JsonObject) -> tuple[TensorType, ...]:
    """What matrices of a quantised checkpoint are read as: the first whose blocks fit a row."""
    method = settings.get("quant_method", str)
    match method:
        case "mxfp4":
            return (TensorType.MXFP4,)
        case "fp8" | "fbgemm_fp8":
            return _FP8
        case "gptq" | "awq":
            return _integers(settings, settings.positive("bits"), settings)
        case "bitsandbytes":
            four = settings.get("load_in_4bit", bool, False)
            return (TensorType.NF4_G64 if four else TensorType.INT8_ROW,)
        case "modelopt":
            return _FP8 if settings.get("quant_algo", str) == "FP8" else (TensorType.NVFP4_ROW,)
    if settings.get("format", str, "") == "mxfp4-pack-quantized":
        return (TensorType.MXFP4,)
    for name, group in settings.get("config_groups", dict, {}).items():
        if isinstance(group, dict) and isinstance(group.get("weights"), dict):
            weights = JsonObject(f"{settings.source}: {name}.weights", group["weights"])
            bits = weights.positive("num_bits")
            if weights.get("type", str, "int") == "int":
                return _integers(settings, bits, weights)
            return _FP8 if bits == 8 else (TensorType.NVFP4_ROW,)
    raise ModelLoadError(settings.source, f"which types weights of {method!r} have isn't said")


def _integers(settings: JsonObject, bits: int, of_groups: JsonObject) -> tuple[TensorType, ...]:
    """Integers in groups of columns; where nobody says of how many, or -1, of a whole row."""
    size: Any = of_groups.content.get("group_size")
    whole = type(size) is not int or size <= 0
    if bits == 8:
        return (TensorType.INT8_ROW if whole else TensorType.INT8_G32,)
    types = tuple(each for step, each in _INT4.items() if whole or size % step == 0)
    if bits > 4 or not types:
        raise ModelLoadError(settings.source, f"{bits} bits in groups of {size}: not known")
    return types


_INT4 = {
    128: TensorType.INT4_G128,
    64: TensorType.INT4_G64,
    32: TensorType.INT4_G32,
}
