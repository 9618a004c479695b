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


def without_layer(name: str) -> str:
    """A tensor's name without the number of its layer: `attn_q.weight` of `blk.3.attn_q.weight`."""
    layers, _, rest = name.partition(".")
    return rest.partition(".")[2] if layers == "blk" else name


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a tensor holds.

    Attributes:
        name: The tensor's name, e.g. `blk.0.attn_q.weight`.
        shape: Dimensions in numpy order, the contiguous one last: (rows, columns) of a matrix.
        type: The block format of its bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType

    @property
    def num_elements(self) -> int:
        """Weights in the tensor."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """Rows of the last dimension, those of all matrices of a stack one after the other."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: whole blocks."""
        return math.prod(self.shape[-1:]) // self.type.block_elements * self.type.block_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.num_elements // self.type.block_elements * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class StoredTensor(TensorInfo):
    """A tensor that lies in a file as it is.

    Attributes:
        offset: Where its bytes start in the file.
        part: Which file of a split model holds it; 0 where there is one file.
    """

    offset: int
    part: int = 0


class TensorFile(Protocol):
    """Named tensors in open files, as a `ModelFile` has them."""

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

    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """The bytes of `count` rows from `first` on, shape (count · row_bytes,).

        Whoever wants all of a tensor asks for its rows in order and once: what has to be read as a
        whole is kept until the last row was asked for.
        """

    def tensor_place(self, name: str) -> tuple[int, int] | None:
        """The descriptor of the open file that holds a tensor, and where in it that begins.

        None where its bytes are in no file as they are: then `tensor_rows` makes them.
        """
