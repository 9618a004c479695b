"""Adapters on their way into a package: checked against the model, and in one file each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.gguf_writer import GGUFWriter
from caudal.formats.lora.adapter import Adapter, Floats
from caudal.formats.lora.base import AdapterBase
from caudal.formats.lora.gguf_adapter import read_gguf_adapter
from caudal.formats.lora.peft import read_peft_files
from caudal.formats.model_folder import ModelFolder
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import TensorType
from caudal.packaging.pieces import Piece, PieceKind


def adapter_file(piece: Piece, base: AdapterBase, directory: Path) -> Path:
    """An adapter as one GGUF file: where it is one, that.

    Args:
        piece: Its file, or those of a folder as PEFT saves it.
        base: The model that it is for.
        directory: Where a new file goes.

    Raises:
        ModelLoadError: It can't be read, asks for what isn't computed, or is for another model.
        OSError: It can't be written.
    """
    if piece.kind is PieceKind.ADAPTER:
        read_gguf_adapter(piece.paths[0], base)
        return piece.paths[0]
    adapter = read_peft_files("the adapter", ModelFolder(piece.files), base)
    path = directory / "adapter.gguf"
    write_adapter(path, adapter, base.architecture)
    return path


def write_adapter(path: Path, adapter: Adapter, architecture: str) -> None:
    """Write an adapter as llama.cpp's converter does.

    Raises:
        OSError: It can't be written.
    """
    alphas = {change.scale * change.rank for change in adapter.matrices.values()}
    # One alpha is for all. Where changes are scaled in other ways, 0 says that they are already.
    alpha = alphas.pop() if len(alphas) == 1 else 0.0
    metadata: Mapping[str, MetadataValue] = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
    }
    factors: dict[str, Floats] = {}
    for name, change in adapter.matrices.items():
        factors[f"{name}.lora_a"] = change.a
        factors[f"{name}.lora_b"] = change.b if alpha else change.b * np.float32(change.scale)
    tensors = [_info(name, floats) for name, floats in factors.items()]
    with GGUFWriter.create(path, metadata, tensors) as writer:
        for floats in factors.values():
            writer.write(np.ascontiguousarray(floats, "<f4").view(np.uint8).reshape(-1))


def _info(name: str, floats: Floats) -> TensorInfo:
    return TensorInfo(name=name, type=TensorType.F32, shape=floats.shape)
