"""A model of which only the configuration is known: its tensors are those that a program asks for.

What a model takes can so be said before its weights are there. Programs are built as from a file;
each tensor that an operation names gets the shape that the operation needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.rows import Rows
from caudal.formats.model_file import ModelFile
from caudal.formats.tensor_file import TensorInfo, without_layer
from caudal.formats.tensor_types import TensorType

Declares = Callable[[str], bool]
"""Whether a model has a tensor that another of its family may lack."""

TypeOf = Callable[[str, tuple[int, ...]], TensorType]
"""The type that a tensor of a name and a shape has."""

MOST_LAYERS = 1024
"""More layers than any model has: a file bounds them by the tensors that it has."""


class SketchedModel(ModelFile):
    """A model without weights.

    Args:
        path: What the configuration is from, for errors.
        metadata: Values by GGUF's keys.
        types: Names of the values' types by key.
        embedding: Rows and columns of `token_embd.weight`.
        made: Tensors that the configuration alone decides.
        declares: Whether it has a tensor that programs look for, and do without.
        rows: Rows of matrices that programs ask files for, by name without `blk.N.`.
        type_of: Types of the others.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, MetadataValue],
        types: Mapping[str, str],
        *,
        embedding: tuple[int, int],
        made: Mapping[str, Rows],
        declares: Declares,
        rows: Mapping[str, int],
        type_of: TypeOf,
    ) -> None:
        self._made = made
        self._declares = declares
        self._asked_rows = rows
        self._type_of = type_of
        self._sketched = {name: each.info_as(name) for name, each in made.items()}
        super().__init__(path, metadata, types, self._sketched)
        self.expect("token_embd.weight", embedding)
        if declares("output.weight"):
            self.expect("output.weight", embedding)

    @property
    def most_layers(self) -> int:
        """See `ModelFile.most_layers`."""
        return MOST_LAYERS

    def declares(self, name: str) -> bool:
        """Whether it has a tensor of this name, as far as that has been asked for or is said."""
        return name in self._sketched or self._declares(name)

    def expect(self, name: str, shape: tuple[int | None, ...], *, grows: bool = False) -> None:
        """Give it a tensor, where it has none of this name yet.

        Args:
            name: Its name.
            shape: Its shape; None: as many rows as the configuration says.
            grows: It is used by parts, of which this one ends with the last row: where others have
                made it shorter, it becomes as long.

        Raises:
            ModelLoadError: The configuration doesn't say how large it is.
        """
        known = self._sketched.get(name)
        if known is not None:
            if grows and shape[0] is not None and known.shape[0] < shape[0]:
                self._sketched[name] = replace(known, shape=(shape[0], *known.shape[1:]))
            return
        sizes = [each for each in shape if each is not None]
        if len(sizes) < len(shape):
            rows = self._asked_rows.get(without_layer(name))
            if rows is None:
                raise ModelLoadError(str(self.path), f"nothing says how large {name} is")
            sizes.insert(0, rows)
        self._sketched[name] = TensorInfo(name, tuple(sizes), self._type_of(name, tuple(sizes)))

    def rows_of(self, name: str) -> int:
        """How many rows a matrix has that may not be there yet.

        Raises:
            ModelLoadError: Nothing says it.
        """
        known = self._sketched.get(name)
        rows = self._asked_rows.get(without_layer(name)) if known is None else known.shape[0]
        if rows is None:
            raise ModelLoadError(str(self.path), f"nothing says how large {name} is")
        return rows

    def become(self, types: Mapping[str, TensorType]) -> None:
        """Give tensors other types, as quantising them does."""
        for name, kind in types.items():
            self._sketched[name] = replace(self._sketched[name], type=kind)

    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """The bytes of some rows of what the configuration decides; others have none.

        Raises:
            ModelLoadError: It is one of the others.
        """
        made = self._made.get(name)
        if made is None:
            raise ModelLoadError(str(self.path), f"tensor {name} has no weights here")
        return np.ascontiguousarray(made.read(first, count)).reshape(-1)

    def tensor_place(self, name: str) -> tuple[int, int] | None:
        """See `ModelFile.tensor_place`."""
        self.tensor(name)
        return None
