"""Models whose files are on this machine, in a store or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import repeat
from pathlib import Path

from caudal.errors import ModelNotFoundError
from caudal.formats.model_folder import CONFIG, WEIGHTS, WEIGHTS_INDEX, ModelFolder
from caudal.formats.split_names import SplitName
from caudal.store.oci import ImageConfig
from caudal.store.package import NO_PACKAGE, Package
from caudal.store.packed_file import Source


class ModelOrigin(StrEnum):
    """Where a model lies."""

    STORE = "store"
    OLLAMA = "ollama"
    """In a directory of Ollama's, which is read and never written to."""
    FILE = "file"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model whose files are on this machine.

    Attributes:
        name: Its canonical name; for a file, the path as given.
        paths: Its weights' files in order: one or, split, several GGUF files; of a folder the
            weights first. What they are called on the disk says nothing.
        names: What the files are called; of a folder, their paths within it.
        size: Bytes of all these files together.
        sha256: Hashes of the files in hex; empty for files outside the store.
        licence: Its licence's name, or an empty string where unknown.
        description: One line about it, or an empty string.
        sources: The packages it came in, as `package==version`; empty where it came otherwise.
        modified: When it was stored, or when the file was last changed.
        full_name: Its name with host, namespace and tag; empty for files outside.
        ollama_name: Its name as Ollama shows it; for a file, the path as given.
        digest: The hash of its manifest in hex; empty for files outside.
        total_size: Bytes of everything that belongs to it.
        config: What it says of itself; None for files outside, or where that can't be read.
        package: What travels with the weights.
        origin: Where it lies.
        parent: The model that it was made from, as Ollama shows its name; empty where that isn't
            known.
    """

    name: str
    paths: tuple[Path, ...]
    names: tuple[str, ...]
    size: int
    sha256: tuple[str, ...]
    licence: str
    description: str
    sources: tuple[str, ...]
    modified: datetime
    full_name: str = ""
    ollama_name: str = ""
    digest: str = ""
    total_size: int = 0
    config: ImageConfig | None = None
    package: Package = NO_PACKAGE
    origin: ModelOrigin = ModelOrigin.FILE
    parent: str = ""

    def template_beside(self, own: str | None) -> str | None:
        """The template that conversations go through; None where neither brings one.

        That is the package's, unless the package names a `renderer`: code of Ollama's, which goes
        before its template there, and redoes the weights' own.

        Args:
            own: The weights' template; None where they have none.
        """
        packaged = self.package.template
        renders = self.config is not None and self.config.renderer != ""
        return own if packaged is None or (renders and own is not None) else packaged

    @property
    def folder(self) -> ModelFolder | None:
        """The model's files by their path within its folder; None where it is GGUF."""
        if CONFIG not in self.names:
            return None
        return ModelFolder(dict(zip(self.names, self.paths, strict=True)))

    def files_now(self) -> tuple[Source, ...]:
        """What its files are at this time.

        Raises:
            ModelNotFoundError: One is gone.
        """
        try:
            return tuple(map(Source.of, self.paths, self.sha256 or repeat(None)))
        except OSError as error:
            raise ModelNotFoundError(f"{error.filename}: {error.strerror}") from error

    @property
    def path(self) -> Path:
        """The first file; of a split model, `paths` has the others."""
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """What a model in the store was found to be.

    Attributes:
        name: Its canonical name.
        size: Bytes of its weights' files together.
        damage: What is wrong with it, or None.
        repair: The command that repairs it, were it damaged.
    """

    name: str
    size: int
    damage: str | None
    repair: str


def model_file(name: str, path: Path) -> StoredModel:
    """A model outside the store, which stays where it is.

    Args:
        name: As it was given.
        path: A GGUF file, any part of a split one, or a folder as Hugging Face lays models out.

    Raises:
        ModelNotFoundError: There is no such model, or it can't be looked at.
    """
    try:
        return _found(name, path)
    except OSError as error:
        raise ModelNotFoundError(f"{name}: {error.strerror or error}") from error


def _found(name: str, path: Path) -> StoredModel:
    if path.is_dir():
        folder = ModelFolder.scan(path)
        if folder.is_complete:
            first = WEIGHTS if WEIGHTS in folder else WEIGHTS_INDEX
            return model_of_files(name, {first: folder.path(first), **folder.files})
        inside = ", ".join(sorted(file.name for file in path.glob("*.gguf"))[:5])
        raise ModelNotFoundError(
            f"{name} is a directory, but not a model's: it lacks config.json, tokenizer.json, or "
            "model.safetensors or its index; name a .gguf file in it"
            + (f": {inside}" if inside else ", but it has none")
        )
    if not path.is_file():
        raise ModelNotFoundError(
            f"there is no file {name}. For a model by name, see: caudal pull --help"
        )
    paths = _split_siblings(path)
    missing = [sibling.name for sibling in paths if not sibling.is_file()]
    if missing:
        raise ModelNotFoundError(
            f"{name} is part of a split model, and beside it these are missing: "
            + ", ".join(missing[:5])
            + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        )
    return model_of_files(name, {path.name: path for path in paths})


def model_of_files(name: str, files: Mapping[str, Path]) -> StoredModel:
    """A model outside the store.

    Args:
        name: What it is called.
        files: Where its files lie, by their names within it, the one to open first.
    """
    paths = tuple(files.values())
    size = sum(file.stat().st_size for file in paths)
    return StoredModel(
        name=name,
        paths=paths,
        names=tuple(files),
        size=size,
        sha256=(),
        licence="",
        description="",
        sources=(),
        modified=datetime.fromtimestamp(max(file.stat().st_mtime for file in paths)).astimezone(),
        ollama_name=name,
        total_size=size,
    )


def _split_siblings(path: Path) -> tuple[Path, ...]:
    name = SplitName.parse(path.name)
    if name is None or name.count == 0:
        return (path,)
    return tuple(map(path.with_name, name.names))
