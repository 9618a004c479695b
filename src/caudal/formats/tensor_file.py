"""What packing weights needs of a model file, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from caudal.formats.gguf_header import TensorInfo


class TensorFile(Protocol):
    """Named tensors in open files: `GGUFFile`, or `RenamedTensors` over safetensors."""

    @property
    def path(self) -> Path:
        """The file, for errors."""

    @property
    def architecture(self) -> str:
        """The model family, e.g. `llama`."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Descriptions by name."""

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes, shape (nbytes,)."""

    def tensor_place(self, name: str) -> tuple[int, int]:
        """The descriptor of the open file that holds a tensor, and where in it that begins."""
