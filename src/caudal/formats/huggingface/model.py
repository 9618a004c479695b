"""A folder's decoder as a `ModelFile`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.chat_templates import chat_template_keys
from caudal.formats.huggingface.checkpoint import Checkpoint, open_checkpoint
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.families import find_family
from caudal.formats.huggingface.methods import find_method
from caudal.formats.huggingface.renamed_tensors import Tensors
from caudal.formats.huggingface.rows import ColumnNumbers, Rows, made_of_floats, mapped
from caudal.formats.huggingface.sampling_keys import sampling_keys
from caudal.formats.huggingface.sentence_keys import SentenceModules, embedding_metadata
from caudal.formats.model_file import ModelFile
from caudal.formats.model_folder import WEIGHTS, ModelFolder
from caudal.formats.safetensors import SafetensorsFile


class FolderModel(ModelFile):
    """A decoder in a folder, under the keys and names of GGUF files.

    Use `open_folder`.

    Args:
        path: The file that the tensors are from, for errors.
        metadata: Values by GGUF's keys.
        tensors: The tensors.

    Attributes:
        left_out: Modules that aren't loaded, because they aren't for text.
    """

    def __init__(self, path: Path, metadata: Mapping[str, MetadataValue], tensors: Tensors) -> None:
        types = {key: type_name(value) for key, value in metadata.items()}
        self._rows = {**tensors.rows, **_column_orders(tensors.rows)}
        infos = {name: rows.info_as(name) for name, rows in self._rows.items()}
        super().__init__(path, metadata, types, infos)
        self.left_out = tensors.left_out

    def with_keys(self, more: Mapping[str, MetadataValue]) -> FolderModel:
        """The same model, which says more of itself."""
        tensors = Tensors(self._rows, self.left_out)
        return FolderModel(self.path, {**self.metadata, **more}, tensors)

    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """The bytes of some rows; see `ModelFile.tensor_rows`."""
        self.tensor(name)
        return np.ascontiguousarray(self._rows[name].read(first, count)).reshape(-1)

    def tensor_place(self, name: str) -> tuple[int, int] | None:
        """Where a tensor lies as it is; see `ModelFile.tensor_place`."""
        self.tensor(name)
        return self._rows[name].place


@contextlib.contextmanager
def open_folder(
    folder: ModelFolder, *, any_column_order: bool = False, with_ahead: bool = False
) -> Iterator[FolderModel]:
    """Open a folder's decoder, and close its files at the end.

    Args:
        folder: The folder.
        any_column_order: Whether matrices may have their columns in another order than that of
            their inputs, which `X.columns` says of `X.weight`; else those become floats.
        with_ahead: Whether layers that predict tokens further ahead are there, too.

    Raises:
        ModelLoadError: The model isn't supported, or its files are damaged; names what is wrong.
    """
    config = Config.of(folder)
    family = find_family(config)
    config = config.with_defaults(family.defaults)
    method = find_method(config)
    modules = SentenceModules.read(folder)
    architecture, is_encoder = family.architecture_for(config), family.is_encoder(config)
    metadata = {
        **family.metadata(config),
        **embedding_metadata(config, modules, architecture, is_encoder=is_encoder),
        **chat_template_keys(folder),
        **sampling_keys(folder),
    }
    if is_encoder and modules.max_length is not None:
        key = f"{architecture}.context_length"
        longest = metadata[key]
        assert isinstance(longest, int)
        metadata[key] = min(modules.max_length, longest)
    with open_checkpoint(folder) as checkpoint, contextlib.ExitStack() as stack:
        tensors = family.tensors(config, checkpoint, method, with_ahead=with_ahead)
        if tensors.ahead:
            layers = config.positive("num_hidden_layers")
            metadata[f"{architecture}.block_count"] = layers + tensors.ahead
            metadata[f"{architecture}.nextn_predict_layers"] = tensors.ahead
        if not any_column_order:
            tensors = tensors.in_order()
        for number, path in enumerate(modules.dense, start=2):
            tensors = tensors.joined(_dense_rows(folder, path, number, stack))
        yield FolderModel(Path(checkpoint.source), metadata, tensors)


def _column_orders(tensors: Mapping[str, Rows]) -> dict[str, Rows]:
    """`X.columns` for each `X.weight` whose columns are in another order: which each of them is."""

    def vector(name: str, order: ColumnNumbers) -> Rows:
        return made_of_floats(name, order.shape, lambda: order.astype(np.float32))

    orders = ((name, rows.column_order) for name, rows in tensors.items())
    named = {
        name.removesuffix("weight") + "columns": order
        for name, order in orders
        if order is not None
    }
    return {name: vector(name, order) for name, order in named.items()}


def _dense_rows(
    folder: ModelFolder, path: str, number: int, stack: contextlib.ExitStack
) -> dict[str, Rows]:
    """The tensors of a linear layer that is a module of its own."""
    file = stack.enter_context(SafetensorsFile.open(folder.path(f"{path}/{WEIGHTS}")))
    checkpoint = Checkpoint(str(file.path), dict.fromkeys(file.entries, file))
    result = {}
    for name in checkpoint:
        if name not in ("linear.weight", "linear.bias"):
            raise checkpoint.error(name, "is not part of a Dense module as Caudal knows it")
        rows = checkpoint.rows(name)
        if len(rows.shape) == 1:
            rows = mapped(rows, lambda values: values)  # to float32
        result[name.replace("linear", f"dense_{number}")] = rows
    return result


def type_name(value: Any) -> str:
    """The name of a metadata value's type, as GGUF files say it."""
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype.name}"
    if isinstance(value, list | tuple):
        return "array of string"
    return type(value).__name__
