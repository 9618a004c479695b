"""What the methods that emit operations work on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from caudal.formats.tensor_file import TensorFile
from caudal.models.builder.sketched import tensors_of
from caudal.models.program import Buffer, KVLayer, Op, StateLayer


@dataclass(frozen=True, slots=True)
class Emitted:
    """An operation, and the buffers that it takes values from and leaves its result in."""

    op: Op
    reads: tuple[Buffer, ...]
    writes: Buffer


class Emitter:
    """Holds the operations emitted so far, their buffers, and what they keep.

    Args:
        file: The model.
        always: See `UsedTensors`.
    """

    def __init__(self, file: TensorFile, always: Collection[str] = ()) -> None:
        self._tensors = tensors_of(file, always)
        self._buffers: dict[tuple[str, int], Buffer] = {}
        self._layers: list[Emitted] = []
        self._states: list[Emitted] = []
        self._head: list[Emitted] = []
        self._section = self._layers
        self._kept = 0  # operations of the layers up to the last that keeps something
        self._kv_layers: list[KVLayer] = []
        self._state_layers: list[StateLayer] = []

    def buffer(self, name: str, width: int) -> Buffer:
        """The buffer of this name, `width` floats per token; made where there is none yet.

        So layers work in the same buffers, one after the other.
        """
        key = (name, width)
        if key not in self._buffers:
            self._buffers[key] = Buffer(len(self._buffers), name, width)
        return self._buffers[key]

    def _emit(
        self, op: Op, reads: tuple[Buffer, ...], writes: Buffer, *, keeps: bool = False
    ) -> None:
        """Add an operation; `keeps`: it keeps something of each token for those that follow it.

        Raises:
            ValueError: It keeps something, but doesn't run for every token.
        """
        self._section.append(Emitted(op, reads, writes))
        if keeps:
            if self._section is not self._layers:
                raise ValueError("states and head don't see every token, and can't keep anything")
            self._kept = len(self._layers)
