"""What makes a score of the mean of a pair's states, where that isn't linear: it can't come before
the mean, so it isn't part of the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from caudal.errors import ModelLoadError
from caudal.formats.model_file import ModelFile
from caudal.formats.tensor_values import tensor_values

Numbers = NDArray[np.float64]

_ERF = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True, eq=False)
class ScoreHead:
    """ModernBERT's: score = out · norm(gelu(dense · mean)), of a few hundred numbers, in float64.

    Attributes:
        dense: Shape (width, width).
        dense_bias: Shape (width,).
        norm: Shape (width,); likewise norm_bias.
        norm_bias: Added after it.
        out: Shape (width,).
        out_bias: Added to the score.
        eps: Added to the variance in the norm.
    """

    dense: Numbers
    dense_bias: Numbers
    norm: Numbers
    norm_bias: Numbers
    out: Numbers
    out_bias: float
    eps: float

    @classmethod
    def read(cls, file: ModelFile, width: int, eps: float) -> Self:
        """Read the tensors `cls`, `cls.norm` and `cls.output`; biases may be missing.

        Raises:
            ModelLoadError: One is missing, or of a wrong shape.
        """

        def weight(name: str, *shape: int) -> Numbers:
            return _read(file, f"{name}.weight", shape)

        def bias(name: str, size: int) -> Numbers:
            full = f"{name}.bias"
            return _read(file, full, (size,)) if full in file.tensors else np.zeros(size)

        return cls(
            dense=weight("cls", width, width),
            dense_bias=bias("cls", width),
            norm=weight("cls.norm", width),
            norm_bias=bias("cls.norm", width),
            out=weight("cls.output", 1, width)[0],
            out_bias=float(bias("cls.output", 1)[0]),
            eps=eps,
        )

    def __call__(self, mean: Numbers) -> Numbers:
        """The score, shape (1,), of the mean of the states, shape (width,)."""
        # Sums, not products of matrices: a library for those may add up in any order.
        x = (self.dense * mean).sum(axis=1) + self.dense_bias
        x = x / 2 * (1 + _ERF(x / math.sqrt(2)))
        x = x - x.mean()
        x = x / math.sqrt(float((x * x).mean()) + self.eps) * self.norm + self.norm_bias
        return np.array([(self.out * x).sum() + self.out_bias])


def _read(file: ModelFile, name: str, shape: tuple[int, ...]) -> Numbers:
    tensor = file.tensor(name)
    if tensor.num_elements != math.prod(shape):
        have, needed = (" x ".join(map(str, each)) for each in (tensor.shape, shape))
        raise ModelLoadError(str(file.path), f"tensor {name} has shape {have} instead of {needed}")
    return tensor_values(file, name).astype(np.float64).reshape(shape)
