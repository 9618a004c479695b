"""Models that can be converted, opened: what a GGUF file of theirs says, and their tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from caudal.conversion.mixes import FLOATS
from caudal.conversion.shapes import dimensions, size_label
from caudal.conversion.tokenizer_keys import tokenizer_metadata
from caudal.formats.gguf import GGUFFile
from caudal.formats.gguf_metadata import MetadataValue
from caudal.formats.huggingface.model import FolderModel, open_folder
from caudal.formats.model_file import ModelFile
from caudal.formats.model_folder import ModelFolder
from caudal.formats.tensor_file import TensorInfo
from caudal.formats.tensor_types import FIRST_OWN_TYPE, TensorType
from caudal.models import ENCODERS
from caudal.store import StoredModel

_FLOAT32 = (
    "_norm.weight",
    "ffn_gate_inp",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d",
    "shortconv.conv",
    "time_mix_first",
    "time_mix_w1",
    "time_mix_w2",
    "time_mix_decay_w1",
    "time_mix_decay_w2",
    "time_mix_lerp_fused",
    "altup_correct_coef",
    "altup_predict_coef",
    "indexer.proj",
)
"""Parts of the names of matrices that llama.cpp's converter leaves as float32."""

_OF_PARTS = "split."
_FILE = ".gguf"


@dataclass(frozen=True, slots=True)
class Source:
    """An open model, as the GGUF file that is made of it before anything is quantised.

    Attributes:
        file: The model, with its tensors as they are stored.
        metadata: Values by GGUF's keys.
        types: Types of the values of some keys, as `TypedMetadata` names them.
        tensors: What the tensors become if nothing else is asked for, by name.
    """

    file: ModelFile
    metadata: Mapping[str, MetadataValue]
    types: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]


@contextlib.contextmanager
def open_source(stored: StoredModel) -> Iterator[Source]:
    """Open a model, and close its files at the end.

    Raises:
        ModelLoadError: The files can't be used; names what is wrong.
        ConversionError: There are no names in GGUF for what the model needs.
    """
    folder = stored.folder
    if folder is None:
        with GGUFFile.open(stored.path, stored.paths) as gguf:
            yield _of_gguf(gguf)
    else:
        with open_folder(folder) as model:
            yield _of_folder(stored.name, folder, model)


def _of_gguf(file: GGUFFile) -> Source:
    kept = {k: value for k, value in file.metadata.items() if not k.startswith(_OF_PARTS)}
    return Source(file, kept, file.types, tensors_before(file))


def _of_folder(name: str, folder: ModelFolder, model: FolderModel) -> Source:
    experts = model.get_int(f"{model.architecture}.expert_count", 0)
    tokenizer = tokenizer_metadata(folder, model)
    general = {
        "general.architecture": model.architecture,
        "general.type": "model",
        "general.name": _short(name),
        "general.size_label": size_label(model.tensors.values(), experts),
    }
    return Source(
        file=model,
        metadata={**general, **model.metadata, **_keys_of_encoders(model), **tokenizer.values},
        types=tokenizer.types,
        tensors=tensors_before(model),
    )


def tensors_before(file: ModelFile) -> Mapping[str, TensorInfo]:
    """What a model's tensors become where nothing is asked for: those of a GGUF file are that."""
    if isinstance(file, GGUFFile):
        return file.tensors
    return {name: _stored_as(tensor) for name, tensor in file.tensors.items()}


def _keys_of_encoders(model: FolderModel) -> dict[str, MetadataValue]:
    """What llama.cpp wants to be told of encoders, though their tensors show it."""
    keys: dict[str, MetadataValue] = {}
    if model.architecture in ENCODERS:
        kinds = model.tensors.get("token_types.weight")
        keys["tokenizer.ggml.token_type_count"] = 1 if kinds is None else kinds.rows
    for number in (2, 3):
        dense = model.tensors.get(f"dense_{number}.weight")
        if dense is not None:
            out, into = dense.shape
            keys[f"{model.architecture}.dense_{number}_feat_in"] = into
            keys[f"{model.architecture}.dense_{number}_feat_out"] = out
    return keys


def _stored_as(tensor: TensorInfo) -> TensorInfo:
    """A folder's tensor of the type that llama.cpp's converter would give it."""
    name = tensor.name
    if tensor.type in FLOATS and (
        dimensions(tensor) < 2
        or not name.endswith(".weight")
        or any(part in name for part in _FLOAT32)
    ):
        return replace(tensor, type=TensorType.F32)
    if tensor.type >= FIRST_OWN_TYPE:
        return replace(tensor, type=TensorType.F16)
    return tensor


def _short(name: str) -> str:
    """A model's name without the directories that it is in."""
    return PurePath(name.rstrip("/")).name.removesuffix(_FILE) or name
