"""What packing weights needs of a model file, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from caudal.formats.tensor_types import TensorType


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is and what it holds.

    Attributes:
        name: The tensor's name, e.g. `blk.0.attn_q.weight`.
        shape: Dimensions in numpy order, the contiguous one last: (rows, columns) of a matrix.
        type: The block format of its bytes.
        offset: Where its bytes start in the file.
        nbytes: How many bytes it has.
        part: Which file of a split model holds it; 0 where there is one file.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int
    part: int = 0

    @property
    def num_elements(self) -> int:
        """Weights in the tensor."""
        return math.prod(self.shape)


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
