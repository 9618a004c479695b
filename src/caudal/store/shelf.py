"""Directories of models in the layout that Ollama has: blobs by content, manifests by name.

blobs/sha256-HEX
manifests/HOST/NAMESPACE/NAME/TAG
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Protocol

from caudal.errors import ModelNameError, StoreError
from caudal.store.checked import CheckedFiles
from caudal.store.disk import read_file
from caudal.store.facts import DESCRIPTION, LICENCE, REFERENCE, read_sources
from caudal.store.names import RegistryName, parse_kept_name
from caudal.store.oci import MAX_MANIFEST_BYTES, MODEL_TYPES, ImageConfig, ImageManifest, Layer
from caudal.store.package import NO_PACKAGE, Package, read_package
from caudal.store.stored import ModelOrigin, StoredModel

_MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class KeptModel:
    """A model's manifest, and where what it names lies.

    Attributes:
        name: Under which name it is kept.
        manifest: It.
        raw: The manifest's bytes.
        modified: When it was written.
        locate: Where a layer's blob lies or would lie.
        checked: Notes about which of them are whole.
        origin: Whose directory it is.
        inline_config: Its configuration, where that isn't in a blob.
    """

    name: RegistryName
    manifest: ImageManifest
    raw: bytes
    modified: datetime
    locate: Callable[[Layer], Path]
    checked: CheckedFiles
    origin: ModelOrigin
    inline_config: ImageConfig | None = None

    @property
    def shown_name(self) -> str:
        """What the model is called in lists: what was asked for, where that is known."""
        asked = self.manifest.annotations.get(REFERENCE)
        try:
            # A copy under another name has the annotation, too.
            if asked is not None and parse_kept_name(asked).key == self.name.key:
                return asked
        except ModelNameError:
            pass
        return self.name.shown

    @property
    def repair(self) -> str:
        """The command that repairs it, were it damaged."""
        is_ours = self.origin is ModelOrigin.STORE
        return repair_command(self.name, self.shown_name, is_ours=is_ours)

    @property
    def blobs(self) -> Sequence[Layer]:
        """Its blobs, each once."""
        layers = self.manifest.blobs if self.inline_config is None else self.manifest.layers
        return tuple({layer.digest: layer for layer in layers}.values())

    @property
    def weights(self) -> Sequence[Layer]:
        """The layers with its weights: files with titles, or else one, the last, as Ollama does."""
        layers = self.manifest.of_type(*MODEL_TYPES)
        return layers if all(layer.title for layer in layers) else layers[-1:]

    def is_same(self, other: KeptModel) -> bool:
        """Whether nothing has taken the other's place since, not even for a while."""
        return (self.raw, self.modified) == (other.raw, other.modified)

    def find_damage(self, *, again: bool, report: Callable[[int], None]) -> str | None:
        """What is wrong with its files, or None.

        Args:
            again: Read also what is known to have been whole and not to have been written to since.
            report: Called with the number of bytes read so far.
        """
        done = 0
        for layer in self.blobs:
            path = self.locate(layer)
            size = path.stat().st_size if path.is_file() else 0
            if size != layer.size:
                return f"{path} has {size} bytes instead of {layer.size}"
            known = not again and self.checked.is_whole(path, layer.sha256)
            counted = functools.partial(_add_up, report, done)
            if not known and not self.checked.check(path, layer.sha256, counted):
                return f"{path} doesn't have the content that it was fetched with"
            done += layer.size
        return None

    def describe(self) -> StoredModel:
        """All that is to be known of it.

        Raises:
            StoreError: It has no weights; or what travels with it can't be read, or makes no sense.
        """
        if not self.weights:
            raise StoreError(
                f"{self.shown_name} has no weights that Caudal can read: it runs elsewhere, or is "
                "in a form of Ollama's own"
            )
        try:
            names = _file_names(self.weights)
            return self._described(names, self._config(), read_package(self.manifest, self.locate))
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.shown_name} in the store is damaged: {error}") from error

    def outline(self) -> StoredModel:
        """What its manifest and its configuration say, for lists, whatever else is damaged."""
        try:
            names = _file_names(self.weights)
        except ValueError:
            names = ()
        try:
            config = self._config()
        except (OSError, ValueError):
            config = None
        return self._described(names, config, NO_PACKAGE)

    def _config(self) -> ImageConfig:
        if self.inline_config is not None:
            return self.inline_config
        path = self.locate(self.manifest.config)
        return ImageConfig.from_bytes(read_file(path, _MAX_CONFIG_BYTES))

    def _described(
        self, names: tuple[str, ...], config: ImageConfig | None, package: Package
    ) -> StoredModel:
        weights = self.weights if names else ()
        annotations = self.manifest.annotations
        return StoredModel(
            name=self.shown_name,
            paths=tuple(map(self.locate, weights)),
            names=names,
            size=sum(layer.size for layer in weights),
            sha256=tuple(layer.sha256 for layer in weights),
            licence=annotations.get(LICENCE) or _first_line(package.licences),
            description=annotations.get(DESCRIPTION, ""),
            sources=tuple(
                f"{source.package}=={source.version}" for source in read_sources(self.manifest)
            ),
            modified=self.modified,
            full_name=self.name.full,
            ollama_name=self.name.ollama,
            digest=hashlib.sha256(self.raw).hexdigest(),
            total_size=sum(layer.size for layer in self.blobs),
            config=config,
            package=package,
            origin=self.origin,
            parent=weights[-1].from_ if weights else "",
        )


class Shelf(Protocol):
    """Where models may be kept."""

    @property
    def is_ours(self) -> bool:
        """Whether it is Caudal's own."""

    def names(self) -> Sequence[RegistryName]:
        """All that there are, in order."""

    def find(self, name: RegistryName) -> KeptModel | None:
        """The model of a name, whatever its case. Raises `StoreError` where it is damaged."""


class OciShelf:
    """A directory of models in Ollama's layout. Creating one touches nothing on the disk.

    Args:
        directory: It.
        checked: Notes about its blobs.
        origin: Whose it is.
    """

    def __init__(self, directory: Path, checked: CheckedFiles, origin: ModelOrigin) -> None:
        self.directory = directory
        self.checked = checked
        self.origin = origin

    @property
    def is_ours(self) -> bool:
        """See `Shelf`."""
        return self.origin is ModelOrigin.STORE

    @property
    def blobs(self) -> Path:
        """Models' files, named by content."""
        return self.directory / "blobs"

    @property
    def manifests(self) -> Path:
        """One file for every model."""
        return self.directory / "manifests"

    def names(self) -> Sequence[RegistryName]:
        """All models that have a manifest, in order."""
        found = (
            RegistryName.from_path(PurePosixPath(path.relative_to(self.manifests)))
            for path in self.manifests.glob("*/*/*/*")
            if path.is_file()
        )
        return sorted((name for name in found if name is not None), key=lambda name: name.key)

    def mark(self) -> Hashable:
        """What is another when there are other models, or one has been made anew."""
        found = []
        for path in self.manifests.glob("*/*/*/*"):
            with contextlib.suppress(OSError):  # it has just gone
                status = path.stat()
                found.append((str(path), status.st_mtime_ns, status.st_ino, status.st_size))
        return frozenset(found)

    def place(self, name: RegistryName) -> RegistryName:
        """The name as it is written here, where there is one that differs in case only."""
        if (self.manifests / name.path).is_file():
            return name
        for existing in self.names():
            if existing.key == name.key:
                return existing
        return name

    def find(self, name: RegistryName) -> KeptModel | None:
        """See `Shelf`."""
        name = self.place(name)
        path = self.manifests / name.path
        try:
            raw = read_file(path, MAX_MANIFEST_BYTES)
            return self.kept(name, ImageManifest.from_bytes(raw), raw)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{path} is damaged ({error}). Pull its model again, or delete the file."
            ) from error

    def kept(self, name: RegistryName, manifest: ImageManifest, raw: bytes) -> KeptModel:
        """A model of a manifest that is here, or is about to be.

        Args:
            name: Its name as it is written here.
            manifest: It.
            raw: Its bytes.

        Raises:
            OSError: What the system says of the manifest can't be had.
        """
        try:
            modified = (self.manifests / name.path).stat().st_mtime
        except FileNotFoundError:
            modified = time.time()
        return KeptModel(
            name,
            manifest,
            raw,
            datetime.fromtimestamp(modified).astimezone(),
            self.locate,
            self.checked,
            self.origin,
        )

    def locate(self, layer: Layer) -> Path:
        """Where a layer's blob lies or would lie."""
        return self.blob_path(layer.digest)

    def blob_path(self, digest: str) -> Path:
        """Where a blob lies or would lie; the digest is `sha256:HEX`."""
        return self.blobs / digest.replace(":", "-")

    def models(self) -> Iterator[KeptModel]:
        """All models.

        Raises:
            StoreError: A manifest is damaged.
        """
        for name in self.names():
            model = self.find(name)
            if model is not None:
                yield model


def repair_command(name: RegistryName, shown: str, *, is_ours: bool) -> str:
    """What repairs a damaged model.

    Args:
        name: The name that it is kept under.
        shown: What it is called in lists.
        is_ours: Whether it is in Caudal's own store, and not in Ollama's directory.
    """
    return f"caudal pull {shown}" if is_ours else f"ollama pull {name.ollama}"


def _file_names(weights: Sequence[Layer]) -> tuple[str, ...]:
    names = tuple(layer.title or "model.gguf" for layer in weights)
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or not name.isprintable():
            raise ValueError(f"a file of it is called {name!r:.100}")
    if len(set(names)) != len(names):
        raise ValueError("two files of it have the same name")
    return names


def _first_line(licences: Sequence[str]) -> str:
    lines = licences[0].strip().splitlines() if licences else []
    return lines[0].strip()[:80] if lines else ""


def _add_up(report: Callable[[int], None], before: int, count: int) -> None:
    report(before + count)
