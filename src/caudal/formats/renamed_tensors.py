"""Safetensors files read as if their tensors had llama.cpp's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.safetensors import SafetensorsFile
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_names import TensorNames


@dataclass(frozen=True, slots=True)
class RenamedTensors:
    """Tensors of one or more safetensors files under llama.cpp's names (a `TensorFile`).

    Attributes:
        path: The main file, for errors.
        architecture: The model family.
        tensors: Descriptions by new name.
        origins: Where each is: its file, and its name there.
    """

    path: Path
    architecture: str
    tensors: Mapping[str, TensorInfo]
    origins: Mapping[str, tuple[SafetensorsFile, str]]

    @classmethod
    def of(cls, architecture: str, files: Sequence[tuple[SafetensorsFile, TensorNames]]) -> Self:
        """The tensors of a model's open files, the main one first, without those left out.

        Raises:
            ModelLoadError: A tensor that isn't left out is of a type that isn't computed with, or
                would have the name of another.
        """
        origins: dict[str, tuple[SafetensorsFile, str]] = {}
        for file, names in files:
            for name in [*file.tensors, *file.others]:
                new_name = names.new_name(name)
                if new_name is None:
                    continue
                if name in file.others:
                    raise ModelLoadError(
                        str(file.path),
                        f"tensor {name} has type {file.others[name]}; supported are F32, F16 and "
                        "BF16",
                    )
                if new_name in origins:
                    other_file, other = origins[new_name]
                    where = "" if other_file is file else f" of {other_file.path}"
                    raise ModelLoadError(
                        str(file.path), f"tensors {other}{where} and {name} are both {new_name}"
                    )
                origins[new_name] = (file, name)
        tensors = {
            new: replace(file.tensors[old], name=new) for new, (file, old) in origins.items()
        }
        return cls(files[0][0].path, architecture, tensors, origins)

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes, shape (nbytes,)."""
        file, original = self.origins[name]
        return file.tensor_bytes(original)

    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """The bytes of some rows; see `TensorFile.tensor_rows`."""
        file, original = self.origins[name]
        return file.tensor_rows(original, first, count)

    def tensor_place(self, name: str) -> tuple[int, int]:
        """The descriptor of the open file that holds a tensor, and where in it that begins."""
        file, original = self.origins[name]
        return file.tensor_place(original)
