"""Types of keys and values, and the bytes that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args

from caudal.backends.native.options import KVType
from caudal.backends.native.planning import BYTES_PER_SCALE, check_heads, layer_bytes
from caudal.errors import ParameterError
from caudal.models.program import KVLayer


@dataclass(frozen=True, slots=True)
class ElementType:
    """A type that numbers of keys and values may have.

    Attributes:
        name: What it is called.
        elements: Numbers of a block: those that share a scale, or 1.
        bytes: Bytes of a block.
        scale: Bytes of what a head's key has besides, and its value.
    """

    name: str
    elements: int
    bytes: int
    scale: int = 0

    @property
    def is_available(self) -> bool:
        """Whether models can be served with it here."""
        return self.name in get_args(KVType)

    @property
    def text(self) -> str:
        """What a number takes: `2 bytes`, or `18/32 bytes` where blocks have scales."""
        if self.elements == 1:
            return f"{self.bytes} byte{'s' if self.bytes != 1 else ''}"
        return f"{self.bytes}/{self.elements} bytes"

    def check(self, source: str, layers: Sequence[KVLayer]) -> None:
        """See that a model can have it; where models aren't served with it, any can.

        Args:
            source: The model's name.
            layers: Its layers.

        Raises:
            ModelLoadError: Its heads are too wide.
        """
        if self.is_available:
            check_heads(source, layers, cast("KVType", self.name))

    def of_head(self, channels: int) -> int:
        """Bytes of a head of so many channels: whole blocks."""
        return -(-channels // self.elements) * self.bytes

    def of_layer(self, layer: KVLayer) -> int:
        """Bytes of a token in a layer."""
        if self.is_available:
            return layer_bytes(layer, cast("KVType", self.name))
        values = 0 if layer.latent else self.of_head(layer.channels_of_values)
        return layer.kv_heads * (self.of_head(layer.head_dim) + values)


KV_TYPES = {
    each.name: each
    for each in (
        ElementType("f32", 1, 4),
        ElementType("f16", 1, 2),
        ElementType("bf16", 1, 2),
        ElementType("fp8", 1, 1),
        ElementType("q8", 1, 1, BYTES_PER_SCALE),
        ElementType("q4", 32, 18),
    )
}
"""By name; `q4` is blocks of 32 with a half-precision scale, as Q4_0 is."""


def find_kv_type(name: str) -> ElementType:
    """A type by its name; one that models are served with is called here as there.

    Raises:
        ParameterError: There is none; names those that there are.
    """
    found = KV_TYPES.get(name)
    if found is None:
        raise ParameterError(
            "kv_type",
            f"{name!r:.40} is no type of keys and values; known are {', '.join(KV_TYPES)}",
        )
    return found
