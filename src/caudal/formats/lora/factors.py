"""Factors of an adapter's changes, checked against the matrices that they are for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats.lora.adapter import Floats
from caudal.formats.lora.base import AdapterBase

MAX_RANK = 1024
"""More than anybody trains; each token of a batch takes so many floats besides, at most."""

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"


@dataclass(frozen=True, slots=True)
class Checks:
    """Refuses what doesn't fit.

    Attributes:
        source: The adapter, for errors.
        base: The model that it is for.
    """

    source: str
    base: AdapterBase

    def error(self, reason: str) -> ModelLoadError:
        """What to raise about the adapter."""
        return ModelLoadError(self.source, reason)

    def matrix(self, name: str, what: str) -> tuple[int, int]:
        """The rows and columns of a matrix that an adapter can change.

        Args:
            name: The matrix, as the model's file calls it.
            what: What the adapter calls it, for errors.

        Raises:
            ModelLoadError: The model has none of this name; or it is looked up in, or one of
                several in a tensor.
        """
        if name == EMBEDDING:
            raise self.error(
                f"{what} changes the embedding; supported are changes of matrices that activations "
                "are multiplied by"
            )
        shapes = self.base.shapes
        tied = name == OUTPUT and OUTPUT not in shapes
        shape = shapes.get(EMBEDDING if tied else name)
        if shape is None:
            raise self.error(
                f"{what} changes {name}, which the model doesn't have: is it for another model?"
            )
        if len(shape) != 2:
            kind = "experts" if "_exps" in name else "a tensor"
            raise self.error(
                f"{what} changes {kind} ({name} of shape {list(shape)}); supported are changes of "
                "single matrices"
            )
        return shape[0], shape[1]

    def rank(self, what: str, a: tuple[int, ...], b: tuple[int, ...]) -> int:
        """The rank of two factors, shapes (rank, columns) and (rows, rank).

        Raises:
            ModelLoadError: They are no such factors.
        """
        if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            raise self.error(
                f"{what} has factors of shapes {list(a)} and {list(b)}, not rank x columns and "
                "rows x rank"
            )
        if not 0 < a[0] <= MAX_RANK:
            raise self.error(f"{what} has rank {a[0]}; supported are 1 to {MAX_RANK}")
        return a[0]

    def fits(self, what: str, name: str, rows: int, columns: int) -> int:
        """How many rows of a change count: all, or of the output matrix those of tokens.

        Raises:
            ModelLoadError: The matrix has another shape.
        """
        have = self.matrix(name, what)
        padded = name == OUTPUT and rows > have[0]  # rows behind those of tokens are left out
        if columns != have[1] or (rows != have[0] and not padded):
            raise self.error(
                f"{what} changes a matrix of {rows} x {columns}, but {name} is {have[0]} x "
                f"{have[1]}: is it for another model?"
            )
        return have[0]

    def finite(self, what: str, values: Floats) -> Floats:
        """The values.

        Raises:
            ModelLoadError: One is infinite, or not a number.
        """
        if not np.isfinite(values).all():
            raise self.error(f"{what} has values that are infinite or not numbers")
        return values

    def scale(self, what: str, factor: Floats, scale: float) -> float:
        """What a change is multiplied by.

        Raises:
            ModelLoadError: It, or the second factor times it, is beyond what floats of 32 bits
                hold.
        """
        largest = max(1.0, float(np.abs(factor).max(initial=0.0)))
        if largest * abs(scale) > float(np.finfo(np.float32).max):
            raise self.error(f"{what} is multiplied by {scale:g}, which is more than floats hold")
        return scale
