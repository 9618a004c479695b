"""What the store remembers about a model, and where on disk everything is."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from caudal.errors import StoreError
from caudal.store.checked import CheckedFiles
from caudal.store.disk import write_atomically

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a model.

    Attributes:
        name: The file's name where it came from; of a model that is a folder, its path within that.
        blob: Its name in the store's blob directory.
        size: Its size in bytes.
        sha256: Its hash in hex.
    """

    name: str
    blob: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A package that the model, or a chunk of it, was taken from.

    Attributes:
        package: Its name.
        version: Its version.
        url: Where it was downloaded, without credentials.
        sha256: Hash of the wheel in hex, or None if the index gave none.
    """

    package: str
    version: str
    url: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model in the store.

    Attributes:
        name: Its canonical name.
        files: Its files, in order.
        sources: Where they came from.
        licence: Its licence's name, or an empty string if nobody said.
        description: One line about it.
        pulled_at: When it was fetched.
    """

    name: str
    files: tuple[StoredFile, ...]
    sources: tuple[PackageSource, ...]
    licence: str
    description: str
    pulled_at: datetime


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The directories of a store.

    `blobs/` holds models' files named by their hash, `manifests/` one JSON file a model name,
    `checked/` notes about blobs that were found whole, and `downloads/` wheels on their way in.
    Creating one of these touches nothing on disk.
    """

    home: Path

    @property
    def blobs(self) -> Path:
        """Models' files, named by content."""
        return self.home / "blobs"

    @property
    def manifests(self) -> Path:
        """One JSON file for every model name."""
        return self.home / "manifests"

    @property
    def downloads(self) -> Path:
        """Wheels, complete and partial, of pulls that haven't finished."""
        return self.home / "downloads"

    @property
    def checked(self) -> CheckedFiles:
        """Which blobs are known to be whole."""
        return CheckedFiles(self.home / "checked")

    @property
    def lock(self) -> Path:
        """Held by whoever changes the store."""
        return self.home / "store.lock"

    def create(self) -> None:
        """Make the directories."""
        for directory in (self.blobs, self.manifests, self.downloads):
            directory.mkdir(parents=True, exist_ok=True)

    def read_manifest(self, name: str) -> Manifest | None:
        """The manifest of a model, or None if there is none.

        Raises:
            StoreError: The manifest is damaged.
        """
        return _read(self._manifest_path(name))

    def read_manifests(self) -> Iterator[Manifest]:
        """All manifests.

        Raises:
            StoreError: One of them is damaged.
        """
        for name in self.names():
            manifest = self.read_manifest(name)
            if manifest is not None:
                yield manifest

    def names(self) -> list[str]:
        """Names of all models that have a manifest, in order."""
        return sorted(unquote(path.stem) for path in self.manifests.glob("*.json"))

    def find_damage(
        self, manifest: Manifest, *, again: bool, report: Callable[[int], None]
    ) -> str | None:
        """What is wrong with a model's files, or None.

        Args:
            manifest: The model.
            again: Read also what is known to have been whole and not to have been written to since.
            report: Called with the number of bytes read so far.
        """
        done = 0
        for file in manifest.files:
            path = self.blobs / file.blob
            size = path.stat().st_size if path.is_file() else 0
            if size != file.size:
                return f"{path} has {size} bytes instead of {file.size}"
            known = not again and self.checked.is_whole(path, file.sha256)
            counted = functools.partial(_add_up, report, done)
            if not known and not self.checked.check(path, file.sha256, counted):
                return f"{path} doesn't have the content that it was fetched with"
            done += file.size
        return None

    def write_manifest(self, manifest: Manifest) -> None:
        """Add or replace a model's manifest."""
        content = {
            "schema": _SCHEMA,
            **asdict(manifest),
            "pulled_at": manifest.pulled_at.isoformat(timespec="seconds"),
        }
        text = json.dumps(content, indent=2) + "\n"
        write_atomically(self._manifest_path(manifest.name), text.encode())

    def delete_manifest(self, name: str) -> None:
        """Forget a model."""
        self._manifest_path(name).unlink(missing_ok=True)

    def _manifest_path(self, name: str) -> Path:
        return self.manifests / f"{quote(name, safe='')}.json"


def _add_up(report: Callable[[int], None], before: int, count: int) -> None:
    report(before + count)


def _read(path: Path) -> Manifest | None:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(content, dict) or content.get("schema") != _SCHEMA:
        raise _damaged(path, f"expected an object with schema {_SCHEMA}")
    try:
        return Manifest(
            name=_text(content, "name"),
            files=tuple(
                StoredFile(
                    name=_text(file, "name"),
                    blob=_blob_name(file),
                    size=_whole_number(file, "size"),
                    sha256=_text(file, "sha256"),
                )
                for file in _objects(content, "files")
            ),
            sources=tuple(
                PackageSource(
                    package=_text(source, "package"),
                    version=_text(source, "version"),
                    url=_text(source, "url"),
                    sha256=None if source.get("sha256") is None else _text(source, "sha256"),
                )
                for source in _objects(content, "sources")
            ),
            licence=_text(content, "licence"),
            description=_text(content, "description"),
            pulled_at=_moment(content, "pulled_at"),
        )
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, reason: str) -> StoreError:
    return StoreError(f"{path} is damaged ({reason}). Pull its model again, or delete the file.")


def _text(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key)
    if not isinstance(value, str):
        raise ValueError(f"`{key}` must be a string")
    return value


def _blob_name(content: Mapping[str, Any]) -> str:
    name = _text(content, "blob")
    if not name or name != Path(name).name:
        raise ValueError(f"`blob` must be a file's name, not {name!r}")
    return name


def _whole_number(content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"`{key}` must be a number of bytes")
    return value


def _moment(content: Mapping[str, Any], key: str) -> datetime:
    text = _text(content, key)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"`{key}` must be a date and time with an offset, not {text!r}")
    return moment


def _objects(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = content.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise ValueError(f"`{key}` must be a list of objects, and not an empty one")
    return value
