"""The tensors of a model file that a program uses."""

from __future__ import annotations

from collections.abc import Collection

from caudal.errors import ModelLoadError
from caudal.formats.tensor_file import TensorFile, without_layer
from caudal.models.program import VectorName


class UsedTensors:
    """Checks tensors that operations name, and knows in the end which of a file's nothing uses.

    Everything raises `ModelLoadError` for a tensor that is missing, or of another shape.

    Args:
        file: The model; read for the names and shapes of its tensors, and for few numbers.
        always: Tensors that every file of the family has beside what they belong to, though
            operations take up what there is; those of layers without `blk.N.`.
    """

    def __init__(self, file: TensorFile, always: Collection[str] = ()) -> None:
        self._file = file
        self._always = frozenset(always)
        self._used: set[str] = set()
        self._without: set[str] = set()  # tensors that other files have
        self._parts: dict[str, list[tuple[int, int]]] = {}  # of tensors used by parts: their rows

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self._file.tensors

    def has_optional(self, name: str) -> bool:
        """Whether the file has a tensor that a family may have: in all its layers, or in none."""
        if self.has(name):
            return True
        if without_layer(name) in self._always:
            raise ModelLoadError(str(self._file.path), f"tensor {name} is missing")
        self._without.add(name)
        return False

    def leave_out(self, prefix: str) -> None:
        """Take no notice of tensors whose names begin with this."""
        self._used.update(name for name in self._file.tensors if name.startswith(prefix))

    def shape(self, name: str, expected: tuple[int | None, ...]) -> tuple[int, ...]:
        """The shape of a tensor that is used, which has to be this one; None: of any size."""
        shape = self.shape_of(name)
        fits = len(shape) == len(expected) and all(
            size is None or have == size for have, size in zip(shape, expected, strict=True)
        )
        if not fits:
            needed = " x ".join("any" if size is None else str(size) for size in expected)
            found = " x ".join(map(str, shape))
            raise self.error(name, f"has shape {found} instead of {needed}")
        self._used.add(name)
        return shape

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, whatever it is."""
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelLoadError(str(self._file.path), f"tensor {name} is missing")
        return tensor.shape

    def matrix(self, name: str, rows: int | None, columns: int) -> None:
        """Check a matrix's shape; `rows` None: of any number.

        One of one row may be written as a vector: llama.cpp's tools leave out dimensions of 1.
        """
        is_vector = rows in (None, 1) and len(self.shape_of(name)) == 1
        self.shape(name, (columns,) if is_vector else (rows, columns))

    def rows(self, name: str, rows: tuple[int, int] | None, expected: int, *others: int) -> None:
        """Check a tensor's shape: all its rows are used, or those of a range that it has."""
        shape = self.shape(name, (expected if rows is None else None, *others))
        if rows is not None:
            if rows[1] > shape[0]:
                raise self.error(name, f"has {shape[0]} rows instead of at least {rows[1]}")
            self._parts.setdefault(name, []).append(rows)

    def vector(self, name: str, length: int) -> VectorName:
        """The tensor `name`, which has so many numbers, whatever its dimensions."""
        if not self.has(name):
            raise ModelLoadError(str(self._file.path), f"tensor {name} is missing")
        found = self._file.tensors[name].num_elements
        if found != length:
            raise self.error(name, f"has length {found} instead of {length}")
        self._used.add(name)
        return VectorName(name)

    def values(self, name: str, length: int) -> list[float] | None:
        """The values of a float32 vector, or None where the file has none of this name."""
        if not self.has(name):
            return None
        self.shape(name, (length,))
        tensor = self._file.tensors[name]
        if tensor.type.name != "F32":
            raise self.error(name, f"has type {tensor.type.name} instead of F32")
        values: list[float] = self._file.tensor_bytes(name).view("<f4").tolist()
        return values

    def check_all_used(self) -> None:
        """Check that every tensor is used, and that of those used by parts every row is, once.

        Also that layers are alike in what some files have and others don't.

        Raises:
            ModelLoadError: One isn't: computing without it would silently give wrong answers.
        """
        for name, parts in self._parts.items():
            end = 0
            for first, after in [*sorted(parts), (self._file.tensors[name].shape[0],) * 2]:
                if first != end:
                    what = f"{end} to {first - 1} aren't" if first > end else f"from {first} are"
                    twice = "" if first > end else " twice"
                    raise self.error(name, f"has rows {what} used{twice}")
                end = after
        kinds = {without_layer(name) for name in self._used}
        for name in sorted(self._without):
            if without_layer(name) in kinds:
                raise self.error(name, "is missing, though other layers have theirs")
        unused = [name for name in self._file.tensors if name not in self._used]
        if unused:
            raise ModelLoadError(
                str(self._file.path),
                f"tensor {unused[0]} (and {len(unused) - 1} more) is not part of a "
                f"{self._file.architecture} model as Caudal knows it",
            )

    def error(self, name: str, reason: str) -> ModelLoadError:
        """What to raise where a tensor can't be used."""
        return ModelLoadError(str(self._file.path), f"tensor {name} {reason}")
