"""A program's weights, packed for the kernels: made from the model's files, or found as kept.

Packing takes seconds for a gigabyte, so that what was packed is kept on the disk
(`caudal.store.packed`), where a later start finds it. It is read into memory of our own, or mapped:
then the system has one copy of it for all processes, which it may take back when memory is short.
"""

from __future__ import annotations

import hashlib
import logging
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from caudal import _native
from caudal.backends.native.keeping import KeepingThread
from caudal.errors import StoreError
from caudal.formats.tensor_file import TensorFile
from caudal.models.program import Program, TensorName, VectorName
from caudal.store.packed import PackedModel
from caudal.store.packed_file import PackedFile

logger = logging.getLogger(__name__)

PANEL_ROWS: int = _native.PANEL_ROWS
"""Rows are packed in panels of so many."""

KEPT_FROM_BYTES = 384 << 20
"""What takes less isn't kept on the disk: it is packed in less than a second."""

_PIECE_BYTES = 32 << 20
"""Rows that a file makes are asked for in pieces of so many bytes: few enough to need little memory
besides, enough for all threads."""

_READ_BYTES = 256 << 20
"""Packed weights are read in pieces of so many bytes at least, between which progress is told."""

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix of the image.

    Attributes:
        number: Its handle.
        tensor: What the file calls the tensor that it is of.
        begin: Its first row among all of the tensor's.
        rows: How many it has.
        row_bytes: What each of them takes in the file.
    """

    number: int
    tensor: str
    begin: int
    rows: int
    row_bytes: int

    @property
    def source_bytes(self) -> int:
        """What all of them take in the file."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Announced:
    """Matrices that native weights have places for.

    Attributes:
        numbers: The number that each name has among the matrices, or among the experts.
        matrices: All matrices in the image's order.
        sizes: Packed bytes of each name.
        contents: What the image has, as text: for the same, packed weights are the same.
    """

    numbers: dict[TensorName, int]
    matrices: tuple[_Matrix, ...]
    sizes: dict[TensorName, int]
    contents: str


def announce(program: Program, file: TensorFile, weights: _native.Weights) -> Announced:
    """Give a program's matrices places; nothing is read, and no memory taken.

    Raises:
        ValueError: One can't be packed.
    """
    numbers: dict[TensorName, int] = {}
    matrices: list[_Matrix] = []
    sizes: dict[TensorName, int] = {}
    layout = hashlib.sha256()

    def add(name: str, begin: int, end: int) -> int:
        tensor = file.tensors[name]
        number = weights.add_matrix(tensor.type, end - begin, tensor.shape[-1])
        matrices.append(_Matrix(number, name, begin, end - begin, tensor.row_bytes))
        layout.update(f"{name} {int(tensor.type)} {begin} {end} {tensor.shape[-1]}\n".encode())
        return number

    for matrix in program.matrices:
        before = weights.image_bytes
        first, end = matrix.rows or (0, file.tensors[matrix.tensor].rows)
        numbers[matrix] = add(matrix.tensor, first, end)
        sizes[matrix] = weights.image_bytes - before
    for stack in program.experts:
        before = weights.image_bytes
        experts, rows, _ = file.tensors[stack.tensor].shape
        first, end = stack.rows or (0, rows)
        added = [
            add(stack.tensor, expert * rows + first, expert * rows + end)
            for expert in range(experts)
        ]
        numbers[stack] = weights.group_experts(added[0], experts)
        sizes[stack] = weights.image_bytes - before
    contents = f"native layout {_native.weight_layout()}, {layout.hexdigest()}"
    return Announced(numbers, tuple(matrices), sizes, contents)


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Weights that are there.

    Attributes:
        numbers: The number that each has among the packed matrices, the vectors, or the experts.
        sizes: Packed bytes of each matrix, or of all experts' matrices of a name.
        mapped: The file that they are mapped from; None where they are held in memory.
        keeping: What writes them to the disk once it is started; None where that is of no use.
        digest: Of all of them: other weights have another.
    """

    numbers: dict[TensorName, int]
    sizes: dict[TensorName, int]
    mapped: Path | None
    keeping: KeepingThread | None
    digest: bytes


def load_weights(
    program: Program,
    file: TensorFile,
    weights: _native.Weights,
    *,
    mapped: bool = False,
    kept: PackedModel | None = None,
    progress: Progress | None = None,
) -> LoadedWeights:
    """Bring a program's weights to where the kernels read them.

    Args:
        program: The model's program.
        file: The model; nothing of it is read later.
        weights: Where they go.
        mapped: Map them from a file instead of holding them in memory. Where no file can be kept,
            they are held all the same.
        kept: Where packed weights may be kept.
        progress: Called with the share that is there, 0 to 1.

    Raises:
        ValueError: A tensor can't be packed.
        RuntimeError: The file was cut or replaced meanwhile.
        MemoryError: There is no memory for them.
    """
    loading = _Loading(program, file, weights, kept, progress or (lambda share: None))
    path = loading.map() if mapped else None
    keeping = loading.hold() if path is None else None
    sizes = loading.announced.sizes
    return LoadedWeights(loading.numbers, sizes, path, keeping, loading.digest())


class _Loading:
    def __init__(
        self,
        program: Program,
        file: TensorFile,
        weights: _native.Weights,
        kept: PackedModel | None,
        progress: Progress,
    ) -> None:
        self._file = file
        self._weights = weights
        self._kept = kept
        self._progress = progress
        self.announced = announce(program, file, weights)
        self._source_bytes = sum(matrix.source_bytes for matrix in self.announced.matrices)
        self._vectors = hashlib.sha256()
        self._mapped_checksums: Sequence[int] = ()
        self.numbers = self.announced.numbers | {
            name: self._add_vector(name) for name in program.vectors
        }

    def map(self) -> Path | None:
        """Map the image from a file, which is written before if need be; None if it can't be."""
        if self._kept is None or not self._weights.image_bytes:
            return None
        try:
            for _ in range(2):  # one that was there may be damaged
                packed = self._find() or self._write(self._kept)
                with packed:
                    self._weights.map_image(packed.descriptor, packed.offset)
                    if self._is_as_packed():
                        self._mapped_checksums = packed.checksums
                        self._progress(1.0)
                        return packed.path
                    _discard(packed)
        except StoreError as error:
            logger.warning(
                "The packed weights of %s can't be kept on the disk: %s", self._file.path, error
            )
            return None
        raise RuntimeError("what was packed isn't what is on the disk")

    def hold(self) -> KeepingThread | None:
        """Hold the image in memory; returns what will keep it on the disk, if it is worth it."""
        self._weights.hold_image()
        packed = self._find()
        if packed is not None:
            with packed:
                if self._read(packed) and self._is_as_packed():
                    return None
                _discard(packed)
        self._pack()
        if self._kept is None or self._weights.image_bytes < KEPT_FROM_BYTES:
            return None
        return KeepingThread(
            self._weights, self._kept, self.announced.contents, str(self._file.path)
        )

    def digest(self) -> bytes:
        """Of all that is there by now."""
        checksums = self._mapped_checksums or self._weights.checksums
        digest = hashlib.sha256(self._vectors.digest())
        digest.update(self.announced.contents.encode())
        digest.update(struct.pack(f"<{len(checksums)}Q", *checksums))
        return digest.digest()

    def _add_vector(self, name: VectorName) -> int:
        tensor = self._file.tensors[name.tensor]
        first, end = vector_elements(self._file, name)
        begin, after = (
            index // tensor.type.block_elements * tensor.type.block_bytes for index in (first, end)
        )
        data = self._file.tensor_bytes(name.tensor)[begin:after]
        self._vectors.update(f"{name} {tensor.type} {len(data)}\n".encode())
        self._vectors.update(data.tobytes())
        return self._weights.add_vector(tensor.type, data, end - first)

    def _find(self) -> PackedFile | None:
        return None if self._kept is None else self._kept.find(self.announced.contents)

    def _read(self, packed: PackedFile) -> bool:
        """Read the image from a file; False where it isn't what was packed."""
        matrices = self.announced.matrices
        if len(packed.checksums) != len(matrices):
            return False
        first, waiting, done = 0, 0, 0
        for number, matrix in enumerate(matrices):
            waiting += matrix.source_bytes
            if waiting < _READ_BYTES and number + 1 < len(matrices):
                continue
            try:
                self._weights.read_matrices(
                    packed.descriptor,
                    packed.offset,
                    first,
                    number + 1 - first,
                    packed.checksums,
                )
            except RuntimeError:
                return False
            first, waiting, done = number + 1, 0, done + waiting
            self._progress(done / self._source_bytes)
        return True

    def _write(self, kept: PackedModel) -> PackedFile:
        """Pack to a file, tensor by tensor, so that little is in memory at a time.

        Raises:
            StoreError: It can't be written.
        """

        def waiting() -> None:
            logger.info("Waiting for another process that packs weights.")

        contents, matrices = self.announced.contents, self.announced.matrices
        size = self._weights.image_bytes
        with kept.writing(contents, size, len(matrices), needed=True, waiting=waiting) as writer:
            already = self._find()  # made while we waited
            if already is not None:
                return already
            self._weights.write_image(writer.descriptor, writer.offset)
            self._pack()
            writer.finish(self._weights.checksums)
        packed = self._find()
        if packed is None:
            raise StoreError("somebody deleted them")
        return packed

    def _pack(self) -> None:
        done = 0
        by_tensor = groupby(self.announced.matrices, key=lambda matrix: matrix.tensor)
        for tensor, matrices in by_tensor:
            place = self._file.tensor_place(tensor)
            for matrix in matrices:
                self._pack_matrix(matrix, place)
                done += matrix.source_bytes
            self._progress(done / self._source_bytes)

    def _pack_matrix(self, matrix: _Matrix, place: tuple[int, int] | None) -> None:
        if place is not None:
            descriptor, offset = place
            offset += matrix.begin * matrix.row_bytes
            self._weights.pack_matrix(matrix.number, descriptor, offset)
            return
        step = max(PANEL_ROWS, _PIECE_BYTES // matrix.row_bytes // PANEL_ROWS * PANEL_ROWS)
        for first in range(0, matrix.rows, step):
            count = min(step, matrix.rows - first)
            rows = self._file.tensor_rows(matrix.tensor, matrix.begin + first, count)
            self._weights.pack_rows(matrix.number, first, rows)

    def _is_as_packed(self) -> bool:
        """Whether the image is what would be packed now, as far as a few rows tell.

        Of each kind of tensor the last rows of one layer: that a file is older than what makes
        rows of a checkpoint's tensors, or packs them, shows in some kind's.
        """
        kinds = {re.sub(r"\d+", "N", each.tensor): each for each in self.announced.matrices}
        for matrix in kinds.values():
            first = (matrix.rows - 1) // PANEL_ROWS * PANEL_ROWS
            rows = self._file.tensor_rows(matrix.tensor, matrix.begin + first, matrix.rows - first)
            if not self._weights.has_rows(matrix.number, first, rows):
                return False
        return True


def vector_elements(file: TensorFile, name: VectorName) -> tuple[int, int]:
    """Which of a tensor's numbers a vector is, in whole blocks: from the first up to the second.

    Raises:
        ValueError: It isn't whole blocks.
    """
    tensor = file.tensors[name.tensor]
    of_row = tensor.num_elements // tensor.shape[0]
    first, end = (row * of_row for row in name.rows or (0, tensor.shape[0]))
    block = tensor.type.block_elements
    if first % block or end % block:
        raise ValueError(
            f"tensor {name.tensor} has type {tensor.type.name}, of which its numbers {first} to "
            f"{end - 1} aren't whole blocks of {block}"
        )
    return first, end


def _discard(packed: PackedFile) -> None:
    logger.warning("%s is damaged, or from another version: it is made again.", packed.path)
    packed.discard()
