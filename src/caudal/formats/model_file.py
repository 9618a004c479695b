"""A model file as families see it: metadata and tensors, under llama.cpp's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.gguf_metadata import MetadataValue, TypedMetadata
from caudal.formats.tensor_file import TensorInfo


class ModelFile(TypedMetadata, ABC):
    """An open model that says of itself what a GGUF file does (a `TensorFile`).

    Families build their programs from it, whatever files there are: a `GGUFFile`, or a Hugging Face
    folder that is read as the GGUF file that llama.cpp's converter would make of it
    (formats/huggingface/).

    Args:
        path: The file, for errors.
        metadata: Values by GGUF's keys.
        types: Names of the values' types by key.
        tensors: Descriptions by llama.cpp's names.

    Attributes:
        path: The file, for errors.
        metadata: Values by GGUF's keys.
        tensors: Descriptions by llama.cpp's names.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, MetadataValue],
        types: Mapping[str, str],
        tensors: Mapping[str, TensorInfo],
    ) -> None:
        super().__init__(str(path), metadata, types)
        self.path = path
        self.tensors = tensors

    @property
    def most_layers(self) -> int:
        """More layers than it can have, whatever it says."""
        return len(self.tensors)

    @property
    def architecture(self) -> str:
        """The model family, e.g. `llama`.

        Raises:
            ModelLoadError: `general.architecture` is missing or not a string.
        """
        return self.get_str("general.architecture")

    def tensor(self, name: str) -> TensorInfo:
        """The description of a tensor.

        Raises:
            ModelLoadError: There is no such tensor.
        """
        found = self.tensors.get(name)
        if found is None:
            raise ModelLoadError(str(self.path), f"tensor {name} is missing")
        return found

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes, read-only, shape (nbytes,).

        Raises:
            ModelLoadError: There is no such tensor, or the file is shorter than it was.
            ValueError: The file has been closed.
        """
        return self.tensor_rows(name, 0, self.tensor(name).rows)

    @abstractmethod
    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """The bytes of some rows; see `TensorFile.tensor_rows`, and for errors `tensor_bytes`."""

    @abstractmethod
    def tensor_place(self, name: str) -> tuple[int, int] | None:
        """Where a tensor lies as it is; see `TensorFile.tensor_place`.

        Raises:
            ModelLoadError: There is no such tensor.
            ValueError: The file has been closed.
        """

    def limit_rows(self, name: str, rows: int) -> None:
        """Take a tensor for one of fewer rows, the first of those that it has."""
        tensor = self.tensor(name)
        limited = replace(tensor, shape=(rows, *tensor.shape[1:]))
        self.tensors = {**self.tensors, name: limited}
