"""The model that an adapter is for, as far as adapters are checked against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.model_file import ModelFile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdapterBase:
    """A model without its weights; kept while it is loaded, as adapters may come at any time.

    Attributes:
        architecture: `general.architecture`.
        shapes: Dimensions of its tensors by name, the contiguous one last.
        sizes: What GGUF's keys say that are integers, by key without the architecture; of those
            that differ from layer to layer the largest.
    """

    architecture: str
    shapes: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, model: ModelFile) -> AdapterBase:
        """Of an open model.

        Raises:
            ModelLoadError: It doesn't say what architecture it is of.
        """
        prefix = f"{model.architecture}."
        sizes = {
            key.removeprefix(prefix): _size(value)
            for key, value in model.metadata.items()
            if key.startswith(prefix)
        }
        return cls(
            architecture=model.architecture,
            shapes={name: tensor.shape for name, tensor in model.tensors.items()},
            sizes={key: size for key, size in sizes.items() if size is not None},
        )


def _size(value: MetadataValue) -> int | None:
    if isinstance(value, np.ndarray):
        return int(value.max()) if value.dtype.kind in "iu" and value.size else None
    return value if type(value) is int else None
