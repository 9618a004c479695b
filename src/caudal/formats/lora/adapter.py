"""An adapter, whichever file it is from: what it adds to matrices of the model it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What is added to a matrix: scale · b · a.

    Attributes:
        a: Shape (rank, columns of the matrix).
        b: Shape (rows of the matrix, rank).
        scale: Multiplies the product; often written as alpha / rank.
    """

    a: Floats
    b: Floats
    scale: float

    @property
    def rank(self) -> int:
        """The rank of the product, at most."""
        return len(self.a)

    @property
    def nbytes(self) -> int:
        """Bytes of both factors."""
        return self.a.nbytes + self.b.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """Changes to a model's matrices, checked against the model.

    Attributes:
        source: The file or folder, for errors.
        matrices: The changes by the names that matrices have in the model's file, e.g.
            `blk.3.attn_q.weight`; at least one.
    """

    source: str
    matrices: Mapping[str, LowRank]

    @property
    def rank(self) -> int:
        """The largest rank."""
        return max(change.rank for change in self.matrices.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all factors."""
        return sum(change.nbytes for change in self.matrices.values())
