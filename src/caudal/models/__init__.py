"""Architectures: each a short function from a model file to a program."""

from __future__ import annotations

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models import (
    bert,
    gemma3,
    glm4,
    granite,
    lfm2,
    llama,
    nemotron_h,
    olmo2,
    olmoe,
    phi3,
    qwen2,
    qwen2moe,
    qwen3,
    qwen3moe,
    qwen35,
    smollm3,
)
from caudal.models.program import Program

_BUILDERS = {
    "bert": bert.build,
    "gemma3": gemma3.build,
    "glm4": glm4.build,
    "granite": granite.build,
    granite.HYBRID: granite.build,
    "lfm2": lfm2.build,
    "llama": llama.build,
    "nemotron_h": nemotron_h.build,
    "nemotron_h_moe": nemotron_h.build,
    "olmo2": olmo2.build,
    "olmoe": olmoe.build,
    "phi3": phi3.build,
    "qwen2": qwen2.build,
    "qwen2moe": qwen2moe.build,
    "qwen2vl": qwen2.build,
    "qwen3": qwen3.build,
    "qwen3moe": qwen3moe.build,
    "qwen35": qwen35.build,
    "qwen3vl": qwen3.build,
    "smollm3": smollm3.build,
}

SUPPORTED_ARCHITECTURES = tuple(_BUILDERS)


def build_program(file: ModelFile) -> Program:
    """The program of a model file.

    Raises:
        ModelLoadError: The architecture isn't supported, or the file's keys and tensors don't
            fit it.
    """
    architecture = file.architecture
    builder = _BUILDERS.get(architecture)
    if builder is None:
        raise ModelLoadError(
            str(file.path),
            f"architecture {architecture!r} is not supported; supported are "
            + ", ".join(SUPPORTED_ARCHITECTURES),
        )
    return builder(file)
