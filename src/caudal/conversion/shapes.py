"""What the rules of quantising, and a model's label, need to know of its size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from caudal.formats.model_file import ModelFile
from caudal.formats.tensor_file import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's sizes, as its metadata has them.

    Attributes:
        architecture: Its family, e.g. `llama`.
        layers: Layers, also those that predict ahead.
        heads: Query heads of the first layer.
        kv_heads: KV heads of the first layer; 0 where it has no attention.
        experts: Experts of a layer; 0 where there are none.
    """

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    experts: int

    @classmethod
    def of(cls, file: ModelFile) -> Self:
        """Read a model's.

        Raises:
            ModelLoadError: A key is missing or of another type.
        """
        architecture = file.architecture
        heads = _of_first_layer(file, f"{architecture}.attention.head_count", 0)
        return cls(
            architecture=architecture,
            layers=file.get_int(f"{architecture}.block_count"),
            heads=heads,
            kv_heads=_of_first_layer(file, f"{architecture}.attention.head_count_kv", heads),
            experts=file.get_int(f"{architecture}.expert_count", 0),
        )

    @property
    def sharing(self) -> int:
        """How many query heads of the first layer share a KV head; 0 where there is none."""
        return self.heads // self.kv_heads if self.kv_heads else 0

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp takes the model for one of 70 billion weights."""
        match self.architecture:
            case "llama":
                return self.layers == 80 and self.heads != self.kv_heads
            case "qwen2" | "deci" | "olmo":
                return self.layers == 80
            case "jais2":
                return self.layers == 68
        return False


def dimensions(tensor: TensorInfo) -> int:
    """A tensor's dimensions without leading ones of size 1: what GGUF's readers count."""
    left = len(tensor.shape)
    while left > 1 and tensor.shape[-left] == 1:
        left -= 1
    return left


def size_label(tensors: Iterable[TensorInfo], experts: int) -> str:
    """`general.size_label`: how many weights there are, as in `135M`, or `8x7B` of experts."""
    in_experts = others = 0
    for tensor in tensors:
        if "_exps." in tensor.name or ".ffn_exp" in tensor.name:
            in_experts += tensor.num_elements
        else:
            others += tensor.num_elements
    if experts and in_experts:
        return f"{experts}x{_rounded(others + in_experts // experts)}"
    return _rounded(others + in_experts)


def _rounded(count: int) -> str:
    sizes = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
    size, suffix = next((each for each in sizes if count > each[0]), (1e3, "K"))
    scaled = count / size
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{scaled:.{digits}f}{suffix}"


def _of_first_layer(file: ModelFile, key: str, default: int) -> int:
    """A number that is one for all layers, or one for each."""
    value = file.metadata.get(key)
    if isinstance(value, np.ndarray) and value.size:
        return int(file.get_array(key, "int")[0])
    return file.get_int(key, default)
