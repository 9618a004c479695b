"""Opens an adapter, whichever form it has."""

from __future__ import annotations

from pathlib import Path

from caudal.formats.lora.adapter import Adapter
from caudal.formats.lora.base import AdapterBase
from caudal.formats.lora.gguf_adapter import read_gguf_adapter
from caudal.formats.lora.peft import read_peft_adapter


def read_adapter(path: Path, base: AdapterBase) -> Adapter:
    """Read an adapter and check it against the model that it is for.

    Args:
        path: A GGUF file, or a folder as PEFT saves it.
        base: The model.

    Raises:
        ModelLoadError: It can't be read, asks for what isn't computed, or is for another model;
            names what is wrong.
    """
    if path.is_dir():
        return read_peft_adapter(path, base)
    return read_gguf_adapter(path, base)
