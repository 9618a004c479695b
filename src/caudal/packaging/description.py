"""What `/api/show` and `caudal show` say of a model, in Ollama's words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from caudal.formats.gguf import GGUFFile
from caudal.formats.gguf_metadata import MetadataValue, StringArray
from caudal.formats.model_file import ModelFile
from caudal.packaging.capabilities import capabilities_of
from caudal.packaging.modelfile import Command, Instruction, Modelfile
from caudal.packaging.parameters import parameter_lines, parameter_table
from caudal.packaging.weights import open_weights
from caudal.store import StoredModel
from caudal.store.image_config import config_of
from caudal.store.oci import ImageConfig
from caudal.store.package import PackagedMessage

_TEMPLATE = "tokenizer.chat_template"
_UNKNOWN = "unknown"
_LEFT_OUT = ("general.name", _TEMPLATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDetails:
    """What lists of models say of one.

    Attributes:
        parent_model: What it was made from; empty where that isn't known.
        format: `gguf`, or `safetensors` of a folder.
        family: The architecture.
        families: The architectures of all its files.
        parameter_size: Its size in words, e.g. `134.52M`.
        quantization_level: What its weights are quantised to, e.g. `Q4_K_M`.
    """

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: Sequence[str] = ()
    parameter_size: str = ""
    quantization_level: str = ""

    def to_json(self) -> dict[str, Any]:
        """As Ollama's routes have it."""
        return {
            "parent_model": self.parent_model,
            "format": self.format,
            "family": self.family,
            "families": list(self.families),
            "parameter_size": self.parameter_size,
            "quantization_level": self.quantization_level,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageDescription:
    """All that is said of a model.

    Attributes:
        modelfile: A Modelfile that makes the same model.
        parameters: Its parameters, one a line, in columns.
        template: The template that its prompts are made with; empty where it has none.
        system: What the system says where a conversation doesn't.
        details: What lists say.
        model_info: The keys of its weights; lists are None unless they were asked for.
        capabilities: What it can do.
        licence: Its licences' texts.
        messages: What all its conversations begin with.
        modified_at: When it was made.
        requires: The version of Ollama that it needs, where it says so.
        projector_info: The keys of what makes images into embeddings, where it has that.
        tensors: Each tensor's name, type and shape, where they were asked for.
    """

    modelfile: str
    parameters: str
    template: str
    system: str
    details: ModelDetails
    model_info: Mapping[str, Any]
    capabilities: Sequence[str]
    licence: str
    messages: Sequence[PackagedMessage]
    modified_at: datetime
    requires: str
    projector_info: Mapping[str, Any] | None
    tensors: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """As `/api/show` answers: what there is nothing of is left out, as Ollama does."""
        maybe = {
            "license": self.licence,
            "modelfile": self.modelfile,
            "parameters": self.parameters,
            "template": self.template,
            "system": self.system,
            "messages": [{"role": each.role, "content": each.content} for each in self.messages],
            "projector_info": self.projector_info,
            "tensors": list(self.tensors),
            "capabilities": list(self.capabilities),
            "requires": self.requires,
        }
        return {
            **{key: value for key, value in maybe.items() if value},
            "details": self.details.to_json(),
            "model_info": dict(self.model_info),
            "modified_at": self.modified_at.isoformat(),
        }


def model_details(stored: StoredModel) -> ModelDetails:
    """What lists say of a model: what it says of itself, or else what its weights say."""
    config = stored.config or ImageConfig()
    if not config.model_family or config.file_type in ("", _UNKNOWN):
        of_files = config_of(dict(zip(stored.names, stored.paths, strict=True)))
        config = replace(
            config,
            model_format=config.model_format or of_files.model_format,
            model_family=config.model_family or of_files.model_family,
            model_families=config.model_families or of_files.model_families,
            model_type=config.model_type or of_files.model_type,
            file_type=of_files.file_type,
        )
    return ModelDetails(
        parent_model=stored.parent,
        format=config.model_format,
        family=config.model_family,
        families=config.model_families,
        parameter_size=config.model_type,
        quantization_level=config.file_type,
    )


def model_capabilities(stored: StoredModel) -> Sequence[str]:
    """What a model can do, in Ollama's words.

    Raises:
        ModelLoadError: Its weights can't be read; names what is wrong.
    """
    with open_weights(stored) as file:
        return capabilities_of(file, _template(stored, file), stored.config or ImageConfig())


def describe_package(stored: StoredModel, *, verbose: bool = False) -> PackageDescription:
    """All that is said of a model.

    Args:
        stored: The model.
        verbose: With lists in full, such as the vocabulary, and with all tensors.

    Raises:
        ModelLoadError: Its weights can't be read; names what is wrong.
    """
    package = stored.package
    config = stored.config or ImageConfig()
    with open_weights(stored) as file:
        template = _template(stored, file)
        return PackageDescription(
            modelfile=_modelfile(stored, config),
            parameters=parameter_table(package.parameters),
            template=template,
            system=package.system or "",
            details=model_details(stored),
            model_info=_keys(file, verbose=verbose, left_out=_LEFT_OUT),
            capabilities=capabilities_of(file, template, config),
            licence="\n".join(package.licences),
            messages=package.messages,
            modified_at=stored.modified,
            requires=config.requires,
            projector_info=_projector(package.projectors, verbose=verbose),
            tensors=_tensors(file) if verbose else (),
        )


def _template(stored: StoredModel, file: ModelFile) -> str:
    """The template in force: the package's, or the weights' own."""
    return stored.template_beside(file.get_str(_TEMPLATE, None)) or ""


def _modelfile(stored: StoredModel, config: ImageConfig) -> str:
    package = stored.package
    # Files of several have names that blobs lack: only the model as a whole can be built on.
    whole = len(stored.paths) == 1 and stored.folder is None
    weights = str(stored.path) if whole else stored.name
    instructions = [
        Instruction(Command.FROM, weights),
        *(Instruction(Command.ADAPTER, str(path)) for path in package.adapters),
        *(Instruction(Command.FROM, str(path)) for path in package.projectors),
    ]
    for command, value in (
        (Command.TEMPLATE, package.template),
        (Command.SYSTEM, package.system),
        (Command.RENDERER, config.renderer),
        (Command.PARSER, config.parser),
        (Command.REQUIRES, config.requires),
    ):
        if value:
            instructions.append(Instruction(command, value))
    instructions += [
        Instruction(Command.PARAMETER, value, name)
        for name, value in parameter_lines(package.parameters)
    ]
    instructions += [Instruction(Command.LICENSE, text) for text in package.licences]
    instructions += [
        Instruction(Command.MESSAGE, each.content, each.role) for each in package.messages
    ]
    return (
        '# Modelfile generated by "caudal show"\n'
        "# To build a new Modelfile based on this, replace FROM with:\n"
        f"# FROM {stored.name}\n\n" + Modelfile(tuple(instructions)).to_text()
    )


def _keys(file: ModelFile, *, verbose: bool, left_out: Sequence[str] = ()) -> dict[str, Any]:
    keys = {
        key: _plain(value, verbose=verbose)
        for key, value in sorted(file.metadata.items())
        if key not in left_out
    }
    count = sum(tensor.num_elements for tensor in file.tensors.values())
    return keys | {"general.parameter_count": count}


def _plain(value: MetadataValue, *, verbose: bool) -> Any:
    """A value as JSON has it; a number that JSON lacks is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int | str):
        return value
    if not verbose:
        return None
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            return [each if math.isfinite(each) else None for each in value.tolist()]
        return value.tolist()
    return value.tolist() if isinstance(value, StringArray) else list(value)


def _projector(paths: Sequence[Path], *, verbose: bool) -> Mapping[str, Any] | None:
    if not paths:
        return None
    with GGUFFile.open(paths[0]) as file:
        return _keys(file, verbose=verbose)


def _tensors(file: ModelFile) -> Sequence[Mapping[str, Any]]:
    """Shapes are in GGUF's order, the contiguous dimension first."""
    return [
        {"name": tensor.name, "type": tensor.type.name, "shape": list(reversed(tensor.shape))}
        for tensor in file.tensors.values()
    ]
