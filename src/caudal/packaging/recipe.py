"""What a model is to be made of, whether a Modelfile says so or a request."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caudal.errors import ModelLoadError, ParameterError
from caudal.packaging.model_paths import model_files_at
from caudal.packaging.modelfile import Command, Instruction, Modelfile, ModelfileError
from caudal.packaging.parameters import read_parameters
from caudal.store.package import PackagedMessage

_VERSION = re.compile(r"v?(\d+(\.\d+){0,2}([-+][0-9A-Za-z.+-]+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a model is to be made of: a model by name or files, and what is put in its package.

    What the base has is kept where the recipe says nothing of it; licences are added to its own,
    parameters replace those of the same name, and messages replace all of them.

    Attributes:
        from_: The model that it builds on, by name; None where `files` are what it is made of.
        files: Files by their name: one GGUF or several (of a split model, with a projector or an
            adapter beside it), or those of a folder by their path within it. Where each is: a path,
            or the digest of a blob in the store (`sha256:HEX`).
        adapters: Of LoRA adapters, likewise: GGUF files, or what PEFT saves in a folder.
        template: Go's or Jinja's; None keeps the base's.
        system: What conversations begin with that have no system message of their own.
        parameters: With names and JSON types as Ollama has them.
        licences: Texts.
        messages: What conversations begin with.
        quantize: The type that weights are to be stored in, e.g. `q4_K_M`; None keeps them.
        renderer: Of Ollama's own prompts, by name; kept for it.
        parser: Of Ollama's own readers of answers, likewise.
        requires: The version of Ollama that the model needs, likewise.
    """

    from_: str | None = None
    files: Mapping[str, Path | str] = field(default_factory=dict)
    adapters: Mapping[str, Path | str] = field(default_factory=dict)
    template: str | None = None
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    licences: Sequence[str] = ()
    messages: Sequence[PackagedMessage] = ()
    quantize: str | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None


def recipe_of(modelfile: Modelfile, directory: Path, quantize: str | None = None) -> Recipe:
    """What a Modelfile asks for.

    Args:
        modelfile: The Modelfile.
        directory: What its relative paths start from: where it lies.
        quantize: The type that weights are to be stored in.

    Raises:
        ModelfileError: It asks for what there isn't; names the line.
    """
    from_: str | None = None
    files: dict[str, Path | str] = {}
    adapters: dict[str, Path | str] = {}
    for each in modelfile.instructions:
        match each.command:
            case Command.FROM:
                path = _path(each, directory)
                if _exists(each, path):
                    _add(files, _files_at(each, path))
                elif _is_a_path(each.value):
                    raise ModelfileError(each.line, f"there is no file {path}")
                else:
                    from_ = each.value
            case Command.ADAPTER:
                path = _path(each, directory)
                if not _exists(each, path):
                    raise ModelfileError(each.line, f"there is no file {path}")
                _add(adapters, _files_at(each, path))
            case Command.DRAFT:
                raise ModelfileError(
                    each.line,
                    "draft models in files of their own aren't supported; models that predict "
                    "ahead by themselves need none",
                )
            case _:
                pass
    return Recipe(
        from_=from_,
        files=files,
        adapters=adapters,
        template=modelfile.last(Command.TEMPLATE),
        system=modelfile.last(Command.SYSTEM),
        parameters=_parameters(modelfile),
        licences=[each.value for each in modelfile.all(Command.LICENSE)],
        messages=[
            PackagedMessage(each.name, each.value) for each in modelfile.all(Command.MESSAGE)
        ],
        quantize=quantize,
        renderer=modelfile.last(Command.RENDERER),
        parser=modelfile.last(Command.PARSER),
        requires=_requires(modelfile),
    )


def _parameters(modelfile: Modelfile) -> Mapping[str, Any]:
    instructions = modelfile.all(Command.PARAMETER)
    for each in instructions:
        try:
            read_parameters([(each.name, each.value)])
        except ParameterError as error:
            raise ModelfileError(each.line, str(error)) from error
    return read_parameters((each.name, each.value) for each in instructions)


def _requires(modelfile: Modelfile) -> str | None:
    instructions = modelfile.all(Command.REQUIRES)
    if not instructions:
        return None
    version = read_version(instructions[-1].value)
    if version is None:
        raise ModelfileError(instructions[-1].line, "REQUIRES needs a version, e.g. 0.14.0")
    return version


def read_version(text: str) -> str | None:
    """A version of Ollama as it is kept, without the `v` before it; None where it is none."""
    match = _VERSION.fullmatch(text)
    return None if match is None else match[1]


def _is_a_path(value: str) -> bool:
    """Whether a value can't be the name of a model."""
    return value.startswith((".", "/", "~")) or value.lower().endswith((".gguf", ".safetensors"))


def _path(instruction: Instruction, directory: Path) -> Path:
    if not instruction.value:
        raise ModelfileError(
            instruction.line, f"{instruction.command} lacks what should stand behind it"
        )
    try:
        return directory / Path(instruction.value).expanduser()
    except RuntimeError as error:  # nobody's home
        raise ModelfileError(instruction.line, f"{instruction.value}: {error}") from error


def _exists(instruction: Instruction, path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise ModelfileError(instruction.line, f"{path}: {error.strerror}") from error


def _files_at(instruction: Instruction, path: Path) -> dict[str, Path]:
    try:
        return model_files_at(path)
    except ModelLoadError as error:
        raise ModelfileError(instruction.line, str(error)) from error
    except OSError as error:
        raise ModelfileError(instruction.line, f"{path}: {error.strerror}") from error


def _add(files: dict[str, Path | str], more: Mapping[str, Path]) -> None:
    for name, path in more.items():
        taken = files.get(name, path) != path
        files[f"{path.parent.name}/{name}" if taken else name] = path
