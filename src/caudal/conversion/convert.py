"""A stored model to a GGUF file, quantised if that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caudal import _native
from caudal.conversion.mixes import FLOATS, MIXES, Mix, choose_types, find_mix, in_order
from caudal.conversion.shapes import ModelShape
from caudal.conversion.sources import Source, open_source, tensors_before
from caudal.errors import ConversionError, ModelLoadError
from caudal.formats.gguf_writer import GGUFWriter
from caudal.formats.model_file import ModelFile
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import FIRST_OWN_TYPE, TensorType
from caudal.machine import usable_processors
from caudal.store import StoredModel

Bytes = npt.NDArray[np.uint8]

PIECE_BYTES = 16 << 20
"""About as much of a tensor is read, converted and written at a time."""

_QUANTISATION_VERSION = 2
"""`general.quantization_version`, which says how quantised blocks are to be read."""

_OWN_KEYS = ("general.quantization_version", "general.file_type")


@dataclass(frozen=True, slots=True)
class ConversionProgress:
    """How far a conversion has got.

    Attributes:
        completed: Bytes of the source that have been converted.
        total: Bytes of the source.
        tensor: The tensor that they are of.
    """

    completed: int
    total: int
    tensor: str


ConversionCallback = Callable[[ConversionProgress], None]


def ignore_conversion_progress(_: ConversionProgress) -> None:
    """Report nothing."""


def convert_model(
    stored: StoredModel,
    destination: Path,
    quantisation: str | None = None,
    progress: ConversionCallback = ignore_conversion_progress,
    *,
    threads: int | None = None,
    requantise: bool = False,
) -> Path:
    """Write a model as one GGUF file, whole or not at all.

    Each tensor is read once, piece by piece. The file has the same bytes whatever the number of
    threads.

    Args:
        stored: A Hugging Face folder, or a GGUF file.
        destination: The file; what is there is replaced once the new one is whole.
        quantisation: What its matrices become, a name in `MIXES` (or lower case); None leaves
            them as they are, or F16 where GGUF hasn't their type.
        progress: Told after each piece. What it raises ends the conversion, and no file is left.
        threads: How many compute; None: as many as there are processors.
        requantise: Quantise what already is, which loses more than to quantise the original.

    Returns:
        The destination.

    Raises:
        ConversionError: There is no such quantisation, or a tensor can't become what it should.
        ModelLoadError: The model can't be read, or is of a kind that isn't supported.
        OSError: The file can't be written.
    """
    mix = None if quantisation is None else find_mix(quantisation)
    with open_source(stored) as source:
        tensors = _tensors_to_write(source, mix, requantise=requantise)
        # At the end, where llama-quantize puts them.
        metadata = {k: value for k, value in source.metadata.items() if k not in _OWN_KEYS}
        metadata["general.quantization_version"] = _QUANTISATION_VERSION
        metadata["general.file_type"] = _file_type(mix, source, tensors)
        types = {k: kind for k, kind in source.types.items() if k not in _OWN_KEYS}
        with GGUFWriter.create(destination, metadata, tensors, types=types) as writer:
            _Conversion(source, writer, progress, threads or usable_processors()).run(tensors)
    return destination


def tensors_as(file: ModelFile, quantisation: str) -> list[TensorInfo]:
    """What a model's tensors become by a quantisation; nothing of them is read.

    Raises:
        ConversionError: There is no such quantisation.
        ModelLoadError: A key is missing that the rules go by.
    """
    stored = tensors_before(file)
    return _quantised(find_mix(quantisation), file, [stored[name] for name in in_order(stored)])


def _quantised(mix: Mix, file: ModelFile, tensors: list[TensorInfo]) -> list[TensorInfo]:
    types = choose_types(mix, ModelShape.of(file), tensors)
    return [replace(tensor, type=types[tensor.name]) for tensor in tensors]


def _tensors_to_write(source: Source, mix: Mix | None, *, requantise: bool) -> list[TensorInfo]:
    """What the tensors become, in the order in which they are written."""
    tensors = [source.tensors[name] for name in in_order(source.tensors)]
    if mix is not None:
        tensors = _quantised(mix, source.file, tensors)
    for tensor in tensors:
        _check(source.file.tensor(tensor.name), tensor, requantise=requantise)
    return [TensorInfo(each.name, each.shape, each.type) for each in tensors]


def _check(stored: TensorInfo, wanted: TensorInfo, *, requantise: bool) -> None:
    """Refuse what can't be done with a tensor, or shouldn't be."""
    if stored.type == wanted.type:
        if wanted.type >= FIRST_OWN_TYPE:
            raise ConversionError(
                f"{stored.name} is {stored.type.name}, which can't be written as it is; name a "
                "quantisation"
            )
        return
    if not _native.conversion.can_convert(wanted.type):
        raise ConversionError(f"{stored.name}: {wanted.type.name} can't be made of weights")
    # Types of other checkpoints are what their makers publish: there is nothing better to start
    # from, and llama.cpp's converter makes floats of them too.
    if stored.type not in FLOATS and stored.type < FIRST_OWN_TYPE and not requantise:
        raise ConversionError(
            f"{stored.name} is {stored.type.name} already: to quantise it to {wanted.type.name} "
            "would lose more than that; start from the model in F32, F16 or BF16"
        )


def _file_type(mix: Mix | None, source: Source, tensors: list[TensorInfo]) -> int:
    """`general.file_type`: the mix, or what most of the weights are."""
    if mix is not None:
        return mix.file_type
    known = source.file.get_int("general.file_type", None)
    if known is not None:
        return known
    sizes: dict[TensorType, int] = {}
    for tensor in tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.num_elements
    most = max(sizes, key=sizes.__getitem__)
    return next((each.file_type for each in MIXES.values() if each.type is most), 0)


class _Conversion:
    """The tensors' way from the source to the file."""

    def __init__(
        self, source: Source, writer: GGUFWriter, progress: ConversionCallback, threads: int
    ) -> None:
        self._file = source.file
        self._writer = writer
        self._progress = progress
        self._threads = threads

    def run(self, tensors: list[TensorInfo]) -> None:
        """Convert and write all tensors."""
        total = sum(self._file.tensor(tensor.name).nbytes for tensor in tensors)
        completed = 0
        for tensor in tensors:
            for piece in self._pieces(tensor):
                self._writer.write(self._converted(piece, tensor))
                completed += piece.size
                self._progress(ConversionProgress(completed, total, tensor.name))

    def _pieces(self, tensor: TensorInfo) -> Iterator[Bytes]:
        """A tensor's bytes, some rows at a time."""
        stored = self._file.tensor(tensor.name)
        rows = max(1, PIECE_BYTES // max(1, stored.row_bytes))
        for first in range(0, stored.rows, rows):
            yield self._file.tensor_rows(tensor.name, first, min(rows, stored.rows - first))

    def _converted(self, piece: Bytes, tensor: TensorInfo) -> Bytes:
        stored = self._file.tensor(tensor.name)
        if stored.type == tensor.type:
            return piece
        blocks = piece.size // stored.type.block_bytes * stored.type.block_elements
        out = np.empty(blocks // tensor.type.block_elements * tensor.type.block_bytes, np.uint8)
        finite = _native.conversion.convert(
            stored.type, np.ascontiguousarray(piece), tensor.type, out, self._threads
        )
        if not finite:
            raise ModelLoadError(
                str(self._file.path),
                f"tensor {tensor.name} has weights that aren't finite numbers, or are too large "
                f"for {tensor.type.name}",
            )
        return out
