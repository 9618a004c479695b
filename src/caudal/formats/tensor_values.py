"""The numbers that a tensor's bytes stand for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caudal import _native
from caudal.formats.tensor_file import TensorFile


def tensor_values(file: TensorFile, name: str) -> NDArray[np.float32]:
    """All of a tensor's values, in its shape, whatever its type."""
    tensor = file.tensors[name]
    values = _native.kernels.dequantize(tensor.type, file.tensor_bytes(name))
    return np.asarray(values, np.float32).reshape(tensor.shape)
