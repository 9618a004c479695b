"""A checkpoint's tensors under llama.cpp's names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.checkpoint import Checkpoint
from caudal.formats.huggingface.rows import Joined, Rows, in_order, mapped
from caudal.formats.tensor_file import without_layer
from caudal.formats.tensor_types import TensorType


@dataclass(frozen=True, slots=True)
class Tensors:
    """A checkpoint under llama.cpp's names.

    Attributes:
        rows: The tensors by name.
        left_out: Modules that aren't loaded, because they aren't for text.
        ahead: How many layers behind the others predict tokens further ahead.
    """

    rows: Mapping[str, Rows]
    left_out: tuple[str, ...]
    ahead: int = 0

    def in_order(self) -> Tensors:
        """These, with the columns of all in order."""
        return replace(self, rows={name: in_order(rows) for name, rows in self.rows.items()})

    def joined(self, more: Mapping[str, Rows]) -> Tensors:
        """These, and more."""
        return replace(self, rows={**self.rows, **more})


class Renaming:
    """Collects tensors under their new names.

    Args:
        checkpoint: What they are from.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._rows: dict[str, Rows] = {}
        self._origins: dict[str, str] = {}
        self._experts: dict[str, dict[int, Rows]] = defaultdict(dict)

    def add(self, new: str, rows: Rows, origin: str, *, expert: int | None = None) -> None:
        """Add a tensor, or an expert's part of one.

        Args:
            new: Its new name.
            rows: The tensor.
            origin: What it is made of, for errors.
            expert: Which expert's it is, if of one.

        Raises:
            ModelLoadError: There is one of this name already.
        """
        if expert is not None:
            if expert in self._experts[new]:
                raise self.error(origin, f"and another are both {new}")
            self._experts[new][expert] = rows
            return
        if new in self._rows:
            raise self.error(origin, f"and {self._origins[new]} are both {new}")
        self._rows[new] = rows
        self._origins[new] = origin

    def finish(self) -> dict[str, Rows]:
        """All, with experts' parts stacked.

        Raises:
            ModelLoadError: An expert is missing, or unlike the others.
        """
        counts: dict[str, int] = defaultdict(int)  # as many as a layer has at most
        for new, parts in self._experts.items():
            kind = without_layer(new)
            counts[kind] = max(counts[kind], max(parts) + 1)
        for new, parts in self._experts.items():
            made = _stacked(self._checkpoint, new, parts, counts[without_layer(new)])
            self.add(new, made, parts[min(parts)].name)
        self._experts.clear()
        return self._rows

    def error(self, name: str, reason: str) -> ModelLoadError:
        """What to raise about a tensor, which may be one that several stored ones make up."""
        if name in self._checkpoint:
            return self._checkpoint.error(name, reason)
        return ModelLoadError(self._checkpoint.source, f"tensor {name} {reason}")


def with_float_vectors(tensors: Mapping[str, Rows]) -> dict[str, Rows]:
    """The tensors, vectors among them as float32, whatever the matrices are: as converters do."""
    vectors = {
        name: mapped(rows, lambda values: values)
        for name, rows in tensors.items()
        if len(rows.shape) == 1 and rows.type in (TensorType.F16, TensorType.BF16)
    }
    return {**tensors, **vectors}


def _stacked(checkpoint: Checkpoint, name: str, parts: Mapping[int, Rows], count: int) -> Rows:
    """The experts' matrices, [experts][rows][columns]; of vectors, [experts][columns]."""
    missing = [expert for expert in range(count) if expert not in parts]
    if missing:
        raise ModelLoadError(
            checkpoint.source, f"{name}: expert {missing[0]} is missing of {count}"
        )
    ordered = [in_order(parts[expert]) for expert in range(len(parts))]
    if len({(part.shape, part.type) for part in ordered}) > 1:
        raise ModelLoadError(checkpoint.source, f"{name}: experts differ in shape or type")
    return Joined(name, ordered, (len(ordered), *ordered[0].shape))
