"""The model that an adapter is for, as far as adapters are checked against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caudal.formats.model_file import ModelFile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdapterBase:
    """A model without its weights; kept while it is loaded, as adapters may come at any time.

    Attributes:
        architecture: `general.architecture`.
        shapes: Dimensions of its tensors by name, the contiguous one last.
        sizes: What GGUF's keys say that are integers, by key without the architecture.
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
        return cls(
            architecture=model.architecture,
            shapes={name: tensor.shape for name, tensor in model.tensors.items()},
            sizes={
                key.removeprefix(prefix): value
                for key, value in model.metadata.items()
                if key.startswith(prefix) and type(value) is int
            },
        )
