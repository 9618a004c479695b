"""Matrices of GGUF files whose scale is a tensor of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import TensorType


class ScaledTensors:
    """NVFP4 matrices `X.weight` with float scales `X.scale`: one, or one for each of a stack.

    Such a matrix is read as if its rows had the scale in them (`NVFP4_ROW`). `X.input_scale`, which
    is for activations in 4 bits, is left out.

    Args:
        source: The file, for errors.
        stored: Its tensors.

    Attributes:
        tensors: The tensors as they are read.
        scales: The scales of each scaled matrix, by its name.

    Raises:
        ModelLoadError: A scale is of a type or a shape that doesn't fit; names it.
    """

    def __init__(self, source: str, stored: Mapping[str, TensorInfo]) -> None:
        self.tensors = dict(stored)
        self.scales: dict[str, TensorInfo] = {}
        for name, tensor in stored.items():
            module = name.removesuffix(".weight")
            if tensor.type is not TensorType.NVFP4 or module == name or len(tensor.shape) < 2:
                continue
            self.tensors.pop(f"{module}.input_scale", None)
            scale = self.tensors.pop(f"{module}.scale", None)
            if scale is None:
                continue
            matrices = tensor.rows // tensor.shape[-2]
            if scale.type is not TensorType.F32 or scale.num_elements not in (1, matrices):
                raise ModelLoadError(
                    source,
                    f"tensor {scale.name} is {scale.type.name} of shape {list(scale.shape)}, not "
                    f"{matrices} F32 for {name}",
                )
            self.scales[name] = scale
            self.tensors[name] = replace(tensor, type=TensorType.NVFP4_ROW)

    @staticmethod
    def joined(
        rows: npt.NDArray[np.uint8],
        scales: npt.NDArray[np.float32],
        first: int,
        rows_of_matrix: int,
    ) -> npt.NDArray[np.uint8]:
        """Rows with their scales in them.

        Args:
            rows: Rows of NVFP4, shape (rows, row_bytes).
            scales: One, or one for each matrix of the stack.
            first: Where in the stack the first row is.
            rows_of_matrix: Rows that have the same scale.
        """
        blocks = rows.reshape(len(rows), -1, TensorType.NVFP4.block_bytes)
        owners = (first + np.arange(len(rows))) // rows_of_matrix
        of_rows = np.broadcast_to(scales, max(len(scales), owners[-1] + 1))[owners]
        joined = np.empty((*blocks.shape[:2], TensorType.NVFP4_ROW.block_bytes), np.uint8)
        joined[..., :4] = np.ascontiguousarray(of_rows, "<f4").view(np.uint8).reshape(-1, 1, 4)
        joined[..., 4:] = blocks
        return joined.reshape(-1)
