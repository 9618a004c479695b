"""Families by `model_type`; a new one is a file here, and a line in `_ALL`."""

from __future__ import annotations

from caudal.errors import HOW_TO_ASK
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.families import (
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
    mixtral,
    modernbert,
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
    qwen3next,
    qwen35,
    smollm3,
    stablelm,
    starcoder2,
)
from caudal.formats.huggingface.family import Family

_ALL = (
    bert.FAMILY,
    bert.ROBERTA_FAMILY,
    cohere2.EXPERTS_FAMILY,
    cohere2.FAMILY,
    deepseek2.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    gemma3n.FAMILY,
    gemma4.FAMILY,
    gemma4.UNIFIED_FAMILY,
    glm4.FAMILY,
    glm4moe.FAMILY,
    gpt_oss.FAMILY,
    granite.EXPERTS_FAMILY,
    granite.FAMILY,
    granite.HYBRID_FAMILY,
    lfm2.EXPERTS_FAMILY,
    lfm2.FAMILY,
    llama.FAMILY,
    llama4.FAMILY,
    minimax_m2.FAMILY,
    mistral3.FAMILY,
    mixtral.FAMILY,
    modernbert.FAMILY,
    muse_glimmer.FAMILY,
    nemotron_h.FAMILY,
    nomic_bert.FAMILY,
    olmo2.FAMILY,
    olmoe.FAMILY,
    phi3.FAMILY,
    qwen2.FAMILY,
    qwen2.VISION_FAMILY,
    qwen2moe.FAMILY,
    qwen3.FAMILY,
    qwen3.VISION_FAMILY,
    qwen35.EXPERTS_FAMILY,
    qwen35.FAMILY,
    qwen3moe.FAMILY,
    qwen3moe.VISION_FAMILY,
    qwen3next.FAMILY,
    smollm3.FAMILY,
    stablelm.FAMILY,
    starcoder2.FAMILY,
)


def families_of(architecture: str) -> tuple[Family, ...]:
    """All families whose models are of this `general.architecture`."""
    return tuple(
        family
        for family in _ALL
        if architecture == family.architecture or architecture in family.more_architectures
    )


FAMILIES = {kind: family for family in _ALL for kind in family.model_types}


def find_family(config: Config) -> Family:
    """The family of a configuration: its text model's, where it has one of its own.

    Raises:
        ModelLoadError: The `model_type` isn't supported; names it, and those that are.
    """
    for kind in config.model_types:
        if kind in FAMILIES:
            return FAMILIES[kind]
    named = next(filter(None, config.model_types), "")
    raise config.error(
        f"model_type {named!r} is not supported; supported are "
        + ", ".join(sorted(FAMILIES))
        + f"; {HOW_TO_ASK}"
    )
