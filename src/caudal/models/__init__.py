"""Architectures: each a short function from a model file to a program."""

from __future__ import annotations

from collections.abc import Callable

from caudal.errors import HOW_TO_ASK, ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.models import (
    bert,
    cohere2,
    deepseek2,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    glm4,
    glm4moe,
    gpt_oss,
    granite,
    lfm2,
    llama,
    llama4,
    minimax_m2,
    mistral3,
    modern_bert,
    muse_glimmer,
    nemotron_h,
    nomic_bert,
    olmo2,
    olmoe,
    phi3,
    qwen2,
    qwen2moe,
    qwen3,
    qwen3moe,
    qwen35,
    smollm3,
    stablelm,
    starcoder2,
)
from caudal.models.decoder import NOTHING_AHEAD
from caudal.models.program import Program

_BUILDERS: dict[str, Callable[[ModelFile], Program]] = {
    "bert": bert.build,
    "cohere2": cohere2.build,
    cohere2.EXPERTS: cohere2.build,
    "deepseek2": deepseek2.build,
    "gemma2": gemma2.build,
    "gemma3": gemma3.build,
    gemma3.EMBEDDING: gemma3.build_encoder,
    "gemma3n": gemma3n.build,
    "gemma4": gemma4.build,
    "glm4": glm4.build,
    "glm4moe": glm4moe.build,
    "gpt-oss": gpt_oss.build,
    "granite": granite.build,
    granite.HYBRID: granite.build,
    "granitemoe": granite.build,
    "lfm2": lfm2.build,
    lfm2.EXPERTS: lfm2.build,
    "llama": llama.build,
    "llama4": llama4.build,
    "modern-bert": modern_bert.build,
    "minimax-m2": minimax_m2.build,
    "mistral3": mistral3.build,
    "muse-glimmer": muse_glimmer.build,
    "nemotron_h": nemotron_h.build,
    "nemotron_h_moe": nemotron_h.build,
    "nomic-bert": nomic_bert.build,
    nomic_bert.WITH_EXPERTS: nomic_bert.build,
    "olmo2": olmo2.build,
    "olmoe": olmoe.build,
    "qwen2": qwen2.build,
    "qwen2moe": qwen2moe.build,
    "qwen2vl": qwen2.build,
    "qwen3": qwen3.build,
    "qwen3moe": qwen3moe.build,
    qwen35.NEXT: qwen35.build,
    "qwen35": qwen35.build,
    "qwen35moe": qwen35.build,
    "qwen3vl": qwen3.build,
    "qwen3vlmoe": qwen3moe.build,
    "smollm3": smollm3.build,
    "stablelm": stablelm.build,
    "starcoder2": starcoder2.build,
}

_BUILDERS_BY_LENGTH: dict[str, Callable[[ModelFile, int | None], Program]] = {
    "phi3": phi3.build,
}
"""Families whose programs depend on how long the sequences are that will be served."""

_AHEAD: dict[str, Callable[..., Program]] = {
    "deepseek2": deepseek2.build,
    "glm4moe": glm4moe.build,
    qwen35.NEXT: qwen35.build,
    "qwen35": qwen35.build,
    "qwen35moe": qwen35.build,
}
"""Families whose files may have layers that predict tokens further ahead."""

SUPPORTED_ARCHITECTURES = tuple(sorted((*_BUILDERS, *_BUILDERS_BY_LENGTH)))
ENCODERS = frozenset(
    ("bert", gemma3.EMBEDDING, "modern-bert", "nomic-bert", nomic_bert.WITH_EXPERTS)
)
"""Those that generate nothing."""


def build_program(file: ModelFile, *, served_length: int | None = None) -> Program:
    """The program of a model file.

    Args:
        file: The model.
        served_length: Most tokens of a sequence that will be served; None: the model's own length.

    Raises:
        ModelLoadError: The architecture isn't supported, or the file's keys and tensors don't
            fit it.
    """
    architecture = file.architecture
    if architecture in _BUILDERS_BY_LENGTH:
        return _BUILDERS_BY_LENGTH[architecture](file, served_length)
    builder = _BUILDERS.get(architecture)
    if builder is None:
        raise ModelLoadError(
            str(file.path),
            f"architecture {architecture!r} is not supported; supported are "
            + ", ".join(SUPPORTED_ARCHITECTURES)
            + f"; {HOW_TO_ASK}",
        )
    return builder(file)


def has_ahead(file: ModelFile) -> bool:
    """Whether a model has layers that predict tokens further ahead than it does."""
    layers = file.get_int(f"{file.architecture}.nextn_predict_layers", 0)
    return file.architecture in _AHEAD and layers > 0


def build_ahead(file: ModelFile) -> Program:
    """The program of a model's layer that predicts a token further ahead than the model does.

    It takes a state of the model (what its head is computed of, or what this program left as such)
    with the token behind it, and predicts the token behind that.

    Raises:
        ModelLoadError: The file has no such layer, or its tensors don't fit.
    """
    builder = _AHEAD.get(file.architecture)
    if builder is None:
        raise ModelLoadError(str(file.path), NOTHING_AHEAD)
    return builder(file, ahead=True)
