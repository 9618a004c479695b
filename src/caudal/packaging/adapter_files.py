"""Adapters on their way into a package: checked against the model, and in one file each."""

from __future__ import annotations

from pathlib import Path

from caudal.errors import ModelLoadError
from caudal.formats.lora.base import AdapterBase
from caudal.formats.lora.gguf_adapter import read_gguf_adapter
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
    raise ModelLoadError(piece.names[0], "folders can't be converted here; name a GGUF adapter")
