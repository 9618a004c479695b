"""Modules of a checkpoint whose weight is stored in several tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.checkpoint import Checkpoint
from caudal.formats.huggingface.rows import Floats, Rows

WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class Module:
    """The stored tensors of one module.

    Attributes:
        checkpoint: The files.
        path: The module's name.
        found: Which of the method's parts are stored.
    """

    checkpoint: Checkpoint
    path: str
    found: frozenset[str]

    @property
    def name(self) -> str:
        """What its weight would be called if it weren't quantised."""
        return f"{self.path}.{WEIGHT}"

    def __contains__(self, part: str) -> bool:
        return part in self.found

    def stored(self, part: str) -> str:
        """A part's name in the files."""
        return f"{self.path}.{part}"

    def dtype(self, part: str) -> str:
        """A part's type.

        Raises:
            ModelLoadError: It is missing.
        """
        return self.checkpoint.entry(self.stored(part)).dtype

    def shape(self, part: str) -> tuple[int, ...]:
        """A part's dimensions.

        Raises:
            ModelLoadError: It is missing.
        """
        return self.checkpoint.entry(self.stored(part)).shape

    def expect(self, part: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
        """Refuse a part of another type or shape.

        Raises:
            ModelLoadError: It is missing, or not what is expected; says which.
        """
        if self.dtype(part) not in dtypes or self.shape(part) != shape:
            raise self.error(
                part,
                f"is {self.dtype(part)} of shape {list(self.shape(part))}, but by the others of "
                f"{self.path} it must be {' or '.join(dtypes)} of {list(shape)}",
            )

    def floats(self, part: str) -> Floats:
        """A part's numbers: of F32, F16 or BF16.

        Raises:
            ModelLoadError: It is missing, or of another type.
        """
        dtype = self.dtype(part)
        array = self.checkpoint.array(self.stored(part))
        if dtype == "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        if dtype not in ("F32", "F16"):
            raise self.error(part, f"has type {dtype}, not F32, F16 or BF16")
        return array.astype(np.float32)

    def error(self, part: str, reason: str) -> ModelLoadError:
        """What to raise about a part."""
        return self.checkpoint.error(self.stored(part), reason)


class ModuleMethod(ABC):
    """A method (a `Method`, see methods.py) that stores a module's weight in parts.

    A module is quantised if the tensor `mark` is there, whatever lists of exceptions say: its other
    parts then belong to it. All other tensors are as they are.

    Attributes:
        marks: Parts that quantised modules have, and no others.
        parts: What else belongs to such a module.
        unused: Ends of names of what is left out, such as scales for activations.
    """

    marks: tuple[str, ...]
    parts: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def names(self, checkpoint: Checkpoint) -> Iterable[str]:
        """See `Method.names`."""
        return self._names(checkpoint)

    def rows(self, checkpoint: Checkpoint, name: str) -> Rows:
        """See `Method.rows`."""
        path, _, kind = name.rpartition(".")
        if kind == WEIGHT and (module := self._module(checkpoint, path)) is not None:
            return self.weight(module)
        return checkpoint.rows(name)

    @abstractmethod
    def weight(self, module: Module) -> Rows:
        """A quantised module's weight.

        Raises:
            ModelLoadError: A part is missing, or of a type or shape that it can't have.
        """

    def _module(self, checkpoint: Checkpoint, path: str) -> Module | None:
        if not any(f"{path}.{mark}" in checkpoint for mark in self.marks):
            return None
        every = (*self.marks, *self.parts)
        found = frozenset(part for part in every if f"{path}.{part}" in checkpoint)
        return Module(checkpoint, path, found)

    def _names(self, checkpoint: Checkpoint) -> Iterator[str]:
        seen: set[str] = set()
        for name in checkpoint:
            if name.rpartition(".")[2] in self.unused:
                continue
            path, kind = self._split(name)
            if kind is None or (module := self._module(checkpoint, path)) is None:
                yield name
            elif module.path not in seen:
                seen.add(module.path)
                yield module.name

    def _split(self, name: str) -> tuple[str, str | None]:
        """A tensor's module and which part of it this is, if it can be one."""
        for part in (*self.marks, *self.parts):
            if name.endswith(f".{part}"):
                return name[: -len(part) - 1], part
        return name, None
