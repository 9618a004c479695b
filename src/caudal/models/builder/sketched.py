"""The tensors of a model whose weights aren't here: what operations need, it has."""

from __future__ import annotations

from collections.abc import Collection

from caudal.formats.sketched_model import SketchedModel
from caudal.formats.tensor_file import TensorFile
from caudal.models.builder.tensors import UsedTensors
from caudal.models.program import VectorName


class SketchedTensors(UsedTensors):
    """Tells a sketch which tensors a program names (see there), before they are checked.

    Args:
        file: The sketch.
        always: See `UsedTensors`.
    """

    def __init__(self, file: SketchedModel, always: Collection[str] = ()) -> None:
        super().__init__(file, always)
        self._sketch = file

    def has(self, name: str) -> bool:
        """See `UsedTensors.has`."""
        return self._sketch.declares(name)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor; one that nothing has needed yet has no dimensions."""
        tensor = self._sketch.tensors.get(name)
        return () if tensor is None else tensor.shape

    def shape(self, name: str, expected: tuple[int | None, ...]) -> tuple[int, ...]:
        """See `UsedTensors.shape`."""
        if expected == (None, None):
            return (self._sketch.rows_of(name), 0)  # asked for before it is used
        self._sketch.expect(name, expected)
        return super().shape(name, expected)

    def rows(self, name: str, rows: tuple[int, int] | None, expected: int, *others: int) -> None:
        """See `UsedTensors.rows`."""
        if rows is not None:
            self._sketch.expect(name, (rows[1], *others), grows=True)
        super().rows(name, rows, expected, *others)

    def vector(self, name: str, length: int) -> VectorName:
        """See `UsedTensors.vector`."""
        self._sketch.expect(name, (length,))
        return super().vector(name, length)


def tensors_of(file: TensorFile, always: Collection[str] = ()) -> UsedTensors:
    """What checks the tensors of a file, or of a sketch of one; for `always` see `UsedTensors`."""
    if isinstance(file, SketchedModel):
        return SketchedTensors(file, always)
    return UsedTensors(file, always)
