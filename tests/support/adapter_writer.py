"""Writes adapters for tests, and the weights that they come to when they are merged."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caudal.formats.huggingface.families import families_of
from caudal.formats.lora.adapter import Adapter, LowRank
from caudal.formats.tensor_types import TensorType
from references.reference import Recorded
from references.weights import random_weight, write_folder
from support.gguf_writer import write_gguf
from support.safetensors_writer import write_safetensors

Floats = NDArray[np.float32]
Modules = dict[str, tuple[Floats, Floats]]
PEFT = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", "target_modules": []}
"""A configuration; changes are multiplied by 1.5."""


def random_factors(
    name: str, shape: Sequence[int], rank: int = 4, deviation: float = 0.15
) -> tuple[Floats, Floats]:
    """Factors of a change of a matrix of a shape, which its name decides."""
    rng = np.random.default_rng(zlib.crc32(f"adapter of {name}".encode()))
    rows, columns = shape
    a = rng.normal(0, deviation, (rank, columns)).astype(np.float32)
    return a, rng.normal(0, deviation, (rows, rank)).astype(np.float32)


def changeable(recorded: Recorded, architecture: str) -> Modules:
    """Factors for all modules of a model that become single matrices."""
    modules: Modules = {}
    for tensor, (shape, *_) in recorded.tensors.items():
        module = tensor.removesuffix(".weight")
        located = [family.locate(tensor) for family in families_of(architecture)]
        entries = [each for each in located if each.entry is not None and each.expert is None]
        if len(shape) == 2 and entries and "embed" not in module and module != tensor:
            modules[module] = random_factors(module, shape)
    return modules


def random_adapter(
    source: str, shapes: Mapping[str, Sequence[int]], rank: int = 4, deviation: float = 0.15
) -> Adapter:
    """An adapter that changes matrices of these names and shapes."""
    changes = {
        name: LowRank(*random_factors(source + name, shape, rank, deviation), 1.5)
        for name, shape in shapes.items()
    }
    return Adapter(source, changes)


def write_peft(
    path: Path,
    modules: Mapping[str, tuple[Floats, Floats]],
    config: Mapping[str, Any] | None = None,
    more: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """A folder as PEFT saves it; `config` is laid over PEFT, and `more` over the tensors."""
    path.mkdir()
    tensors: dict[str, NDArray[Any]] = {}
    for module, (a, b) in modules.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
    write_safetensors(path / "adapter_model.safetensors", {**tensors, **(more or {})})
    (path / "adapter_config.json").write_text(json.dumps({**PEFT, **(config or {})}))
    return path


def write_gguf_adapter(
    path: Path,
    architecture: str,
    changes: Mapping[str, tuple[Floats, Floats]],
    alpha: float = 6.0,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """A file as llama.cpp's converter writes it; `metadata` is laid over its keys."""
    keys = {
        "general.type": "adapter",
        "general.architecture": architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
    }
    tensors = {
        f"{name}.lora_{which}": (TensorType.F32, factor.shape, factor.tobytes())
        for name, factors in changes.items()
        for which, factor in zip("ab", factors, strict=True)
    }
    return write_gguf(path, {**keys, **(metadata or {})}, tensors)


def write_merged(
    recorded: Recorded, path: Path, modules: Mapping[str, tuple[Floats, Floats]], scale: float
) -> Path:
    """The folder of a recorded model whose weights have an adapter in them."""
    write_folder(recorded, path)
    weights = {name: random_weight(name, *spread) for name, spread in recorded.tensors.items()}
    for module, (a, b) in modules.items():
        change = scale * (b.astype(np.float64) @ a.astype(np.float64))
        weights[f"{module}.weight"] = (weights[f"{module}.weight"] + change).astype(np.float32)
    write_safetensors(path / "model.safetensors", weights)
    return path
