"""The names of a checkpoint's tensors, taken apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from caudal.formats.huggingface.config import Config

# What comes before names in models of text alone, and of more; the longest first.
_PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "language_model.backbone.",
    "language_model.",
    "backbone.",
    "model.",
    "bert.",
    "roberta.",
)
_KINDS = {"gamma": "weight", "beta": "bias"}
"""What older files call the parts of a norm."""
_AHEAD = ("eh_proj", "enorm", "hnorm")
"""Modules of layers that predict tokens further ahead: what joins a state and an embedding."""
_MODULE_AHEAD = "mtp."
_STACKS = ("experts", "norms", "altup_projections", "altup_unembed_projections")
"""Lists of modules, by number, whose tensors are stacked."""

NOT_TEXT = (
    "vision_tower",
    "vision_model",
    "visual",
    "multi_modal_projector",
    "mm_projector",
    "audio_tower",
    "embed_vision",
    "embed_audio",
    "patch_merger",
    "vision_language_adapter",
    "vision_adapter",
    "vision_embedder",
    "vision_projection",
)
"""Modules of models of more than text, which are left out: text is what is loaded."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor's name without the prefixes that differ from file to file, taken apart.

    Attributes:
        layer: The layer that it is of, None if of none.
        expert: The expert, or its place in another stack; the same.
        name: Its name without either number.
    """

    layer: int | None
    expert: int | None
    name: str

    @classmethod
    def of(cls, plain: str, layers: Iterable[str]) -> Place:
        """Take a name apart.

        Args:
            plain: The name without prefixes.
            layers: What names of layers' tensors begin with, before the number.
        """
        layer = expert = None
        for prefix in layers:
            number, _, rest = plain.removeprefix(prefix).partition(".")
            if plain.startswith(prefix) and rest and _is_number(number):
                layer, plain = int(number), rest
                break
        parts = plain.split(".")
        at = next((at for at, part in enumerate(parts[:-1], 1) if part in _STACKS), None)
        if at is not None and _is_number(parts[at]):
            expert = int(parts[at])
            parts = [*parts[:at], "*", *parts[at + 1 :]]
        return cls(layer, expert, ".".join(parts))

    @property
    def module(self) -> str:
        """The module that the tensor is of."""
        return self.name.rpartition(".")[0]

    @property
    def kind(self) -> str:
        """What it is of the module: `weight`, `bias` or a method's own."""
        kind = self.name.rpartition(".")[2]
        return _KINDS.get(kind, kind)


def placed_ahead(plain: str, config: Config) -> Place | None:
    """The place of what Qwen's checkpoints have in a module of its own: behind the other layers.

    None for all else.
    """
    if not plain.startswith(_MODULE_AHEAD):
        return None
    place = Place.of(plain.removeprefix(_MODULE_AHEAD), ("layers.",))
    return replace(place, layer=config.positive("num_hidden_layers") + (place.layer or 0))


def layers_ahead(config: Config, places: Iterable[Place]) -> set[int]:
    """Layers behind the others that only predict tokens further ahead.

    Those are as many as config.json counts, and which have modules that no others do: tools that
    make new files may leave the key out, and keep the tensors.
    """
    if "num_hidden_layers" not in config:
        return set()
    first = config.positive("num_hidden_layers")
    count = config.get("num_nextn_predict_layers", int, 0)
    return {
        place.layer
        for place in places
        if place.layer is not None
        and place.layer >= first
        and (place.layer < first + count or first_of(place.name, _AHEAD) is not None)
    }


def without_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def first_of(name: str, modules: Iterable[str]) -> str | None:
    """Which of the modules a tensor is, or is within."""
    for module in modules:
        if name == module or name.startswith(f"{module}."):
            return module
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4
