"""The store: model names on one side, verified files on disk on the other."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import oci
from caudal.store.disk import exclusive_lock, explained_os_errors
from caudal.store.facts import REFERENCE
from caudal.store.incoming import BlobInfo, Incoming, checked_digest, link_blob, write_blob
from caudal.store.known_models import KnownModel, find_known_model, known_names
from caudal.store.layout import StoreLayout, default_home
from caudal.store.names import (
    FileReference,
    KeptReference,
    PackageReference,
    RegistryName,
    parse_kept_name,
    parse_model_name,
    stored_name,
)
from caudal.store.oci import ImageManifest, Layer
from caudal.store.old_layout import OldShelf
from caudal.store.packed import PackedFiles
from caudal.store.progress import ProgressCallback, PullProgress, PullStage, ignore_progress
from caudal.store.pruning import PrunedFile, prune_store
from caudal.store.shelf import KeptModel, OciShelf, Shelf
from caudal.store.stored import CheckedModel, ModelOrigin, StoredModel, model_file

_ANNOTATED_OS = {"architecture": "amd64", "os": "linux"}
"""What the specification of images asks for, and Ollama writes, though models run anywhere."""


class Store:
    """Models on this machine: those in a directory of ours, and those that Ollama has.

    Reading needs no lock and changes nothing; whoever changes which models there are excludes
    others who do, across processes. Several stores may share a directory.

    Args:
        home: The store's directory, created when something is pulled; None for the default.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._layout = StoreLayout((home or default_home()).absolute())
        self._incoming = Incoming(self._layout.incoming)

    @property
    def home(self) -> Path:
        """The store's directory."""
        return self._layout.home

    @property
    def layout(self) -> StoreLayout:
        """Where in its directory everything is."""
        return self._layout

    def packed(self, limit: int | None = None) -> PackedFiles:
        """Packed weights that are kept beside the models, these and those that are elsewhere.

        Args:
            limit: Most bytes of them; None: half of what is free on the disk.
        """
        return PackedFiles(self.home / "packed", limit)

    def resolve(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel:
        """Find a model on this machine. Never uses the network.

        A file of the store that was written to since it was last checked is read and compared with
        its hash. What is in our store wins over what Ollama has.

        Args:
            name: Any form of a model's name.
            progress: Called as files are read.

        Raises:
            ModelNotFoundError: It isn't here; says how to get it, or which name was meant.
            StoreError: It is here but damaged.
        """
        found = self._find(name)
        if isinstance(found, StoredModel):
            return found
        if found is None:
            raise _not_here(name)
        damage = self._find_damage(found, progress, again=False)
        if damage is not None:
            raise StoreError(
                f"{found.shown_name} in the store is damaged: {damage}. Repair it with: "
                f"{_repair(found)}"
            )
        return found.describe()

    def find(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel | None:
        """The model if it is here; None if it isn't, but a pull may help.

        Raises:
            ModelNotFoundError: There is no such name or file, so that no pull would help.
            StoreError: It is here but damaged; says how to repair it.
        """
        found = self._find(name)
        if found is None:
            _require_pullable(parse_model_name(name))
            return None
        return found if isinstance(found, StoredModel) else self.resolve(name, progress)

    def pull(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel:
        """Fetch a model, or bring it up to date.

        A model that is already here is checked against its hash and repaired if need be. An
        interrupted pull leaves the store as it was; the next one goes on from there.

        Args:
            name: Any form of a model's name; the path of a file is merely resolved.
            progress: Called with every step, on the calling thread.

        Raises:
            ModelNotFoundError: There is no such name or file.
            StoreError: It couldn't be fetched, verified or written.
        """
        # Imported here, so that serving a model that is here doesn't load an HTTP client.
        from caudal.store.pull import Pull, plan_for

        reference = parse_model_name(name)
        if isinstance(reference, FileReference):
            return model_file(name, reference.path)
        plan = plan_for(_require_pullable(reference))

        def waiting() -> None:
            progress(PullProgress(PullStage.WAITING, plan.name))

        with self._writing(), exclusive_lock(self._layout.pull_lock, waiting):
            return Pull(self, plan, progress).run()

    def ensure(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel:
        """The model if it is here, otherwise pull it.

        Raises:
            ModelNotFoundError: There is no such name or file.
            StoreError: It couldn't be fetched, verified or written; or it is here, but damaged.
        """
        return self.find(name, progress) or self.pull(name, progress)

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
        if name is not None:
            yield self._verified(self._kept(name), progress)
            return
        for shelf, each in self._all():
            try:
                model = shelf.find(each)
            except StoreError as error:
                yield CheckedModel(each.shown, 0, str(error))
                continue
            if model is not None:
                yield self._verified(model, progress)

    def list(self) -> Sequence[StoredModel]:
        """All models, by name.

        Raises:
            StoreError: A manifest of ours is damaged.
        """
        models = []
        for shelf, name in self._all():
            try:
                model = shelf.find(name)
            except StoreError:
                if isinstance(shelf, OciShelf) and shelf.origin is ModelOrigin.OLLAMA:
                    continue  # as Ollama does
                raise
            if model is not None:
                models.append(model.outline())
        return sorted(models, key=lambda model: model.name)

    def manifest(self, name: str) -> tuple[ImageManifest, bytes]:
        """What a model consists of: its manifest, and the bytes that its digest is of.

        Raises:
            ModelNotFoundError: It isn't in the store.
            StoreError: The manifest is damaged.
        """
        model = self._kept(name)
        return model.manifest, model.raw

    def blob(self, digest: str) -> Path | None:
        """Where a blob lies, in our store or in Ollama's; None where neither has it whole.

        Args:
            digest: `sha256:HEX`.

        Raises:
            StoreError: It isn't a digest.
        """
        digest = checked_digest(digest)
        for shelf in (self._layout.shelf, *self._layout.ollama_shelves()):
            path = shelf.blob_path(digest)
            if path.is_file():
                return path
        return None

    def partial(self, digest: str) -> Path:
        """Where a download of a blob grows, and is found again after a kill.

        When it is all there, `add_blob(path, digest=digest, move=True)` takes it.

        Args:
            digest: `sha256:HEX`.

        Raises:
            StoreError: It isn't a digest; or the store can't be written to.
        """
        name = checked_digest(digest).replace(":", "-")
        with explained_os_errors(self.home):
            self._layout.create()
        return self._layout.downloads / f"{name}.partial"

    def add_blob(
        self, source: Path | Iterable[bytes], *, digest: str | None = None, move: bool = False
    ) -> BlobInfo:
        """Put a blob in the store: whole, on the disk, and under its hash, or not at all.

        Unless a manifest names it in the next days, `prune` deletes it.

        Args:
            source: A file, or its bytes.
            digest: What it has to be, `sha256:HEX`; where the store has it, nothing is read.
            move: Take the file, which must be on the store's file system, rather than a copy. One
                that isn't what it has to be is deleted.

        Raises:
            StoreError: It has another hash, or can't be read or written.
        """
        if digest is not None:
            digest = checked_digest(digest)
        with self._writing():
            shelf = self._layout.shelf
            if digest is not None:
                present = shelf.blob_path(digest)
                if present.is_file() and shelf.checked.is_whole(present, digest[7:]):
                    if move and isinstance(source, Path):
                        source.unlink(missing_ok=True)
                    return BlobInfo(digest, present.stat().st_size)
            return write_blob(self._incoming, shelf.blobs, source, digest, move=move)

    def commit(
        self,
        name: str,
        config: Mapping[str, Any],
        layers: Sequence[Layer],
        annotations: Mapping[str, str] | None = None,
    ) -> StoredModel:
        """Make a model of blobs: from then on it is there, under its name, whole.

        Blobs that only Ollama's directory has are linked. A model that had the name goes, with
        what no other has of its blobs.

        Args:
            name: Its name: any form but a path.
            config: What it says of itself, as `ImageConfig.to_mapping` gives it.
            layers: Its blobs.
            annotations: What else its manifest is to say.

        Raises:
            ModelNameError: It isn't a name that a model can have.
            StoreError: A blob isn't here, or has another size; or the store can't be written to.
        """
        reference = parse_model_name(name)
        said = dict(annotations or {})
        if not isinstance(reference, RegistryName | FileReference):
            said[REFERENCE] = reference.name
        content = json.dumps(_ANNOTATED_OS | dict(config)).encode()
        blob = self.add_blob([content])
        layer = Layer(oci.CONFIG_TYPE, blob.digest, blob.size)
        return self.commit_manifest(name, ImageManifest(layer, tuple(layers), said).to_bytes())

    def commit_manifest(self, name: str, raw: bytes) -> StoredModel:
        """Make a model of blobs and a manifest that somebody else has written; see `commit`.

        Args:
            name: Its name: any form but a path.
            raw: The manifest; kept byte for byte.

        Raises:
            ModelNameError: It isn't a name that a model can have.
            StoreError: It isn't a manifest; a blob isn't here, or has another size; or the store
                can't be written to.
        """
        kept = parse_kept_name(name)
        try:
            manifest = ImageManifest.from_bytes(raw)
        except ValueError as error:
            raise StoreError(f"{name} is not a model that can be kept: {error}") from error
        with self._changing():
            return self._commit(kept, manifest, raw)

    def copy(self, source: str, destination: str) -> StoredModel:
        """Give a model another name, too. No file is copied; what only Ollama has is linked.

        Raises:
            ModelNameError: The destination isn't a name that a model can have.
            ModelNotFoundError: There is no such model in the store.
            StoreError: The store can't be written to, or the model is damaged.
        """
        name = parse_kept_name(destination)
        with self._changing():
            model = self._kept(source)
            return self._commit(name, model.manifest, model.raw)

    def remove(self, name: str) -> StoredModel:
        """Delete a model from the store and its packed weights; what another name shares stays.

        Returns:
            What was removed; its paths may no longer exist.

        Raises:
            ModelNotFoundError: It isn't in the store.
            StoreError: It is in Ollama's directory only; or the store cannot be written to.
        """
        model = self._kept(name)
        if model.origin is ModelOrigin.OLLAMA:
            raise StoreError(
                f"{model.shown_name} is Ollama's ({model.locate(model.manifest.config).parents[1]})"
                f", which Caudal leaves alone. Remove it with: ollama rm {model.name.ollama}"
            )
        with self._changing():
            model = self._kept(name)
            removed = model.outline()
            shelf = self._layout.shelf
            path = shelf.manifests / model.name.path
            path.unlink(missing_ok=True)
            for directory in list(path.parents)[:3]:
                with contextlib.suppress(OSError):  # another model is in it
                    directory.rmdir()
            self._drop_unused(model.manifest)
        self.packed().remove(lambda entry: entry.is_stale)
        return removed

    def prune(self, grace: float | None = None) -> Sequence[PrunedFile]:
        """Delete what is of no use: blobs that no model has, downloads that nobody came back for.

        Args:
            grace: How many seconds ago something must have been written last; None for some days.

        Raises:
            StoreError: A manifest is damaged, so that nobody knows what it needs; or the store
                can't be written to.
        """
        if not self.home.is_dir():
            return []
        with self._changing():
            return prune_store(self._layout, self._incoming, grace)

    # Of the following, those that change something are called with the store's lock.

    def _commit(self, name: RegistryName, manifest: ImageManifest, raw: bytes) -> StoredModel:
        shelf = self._layout.shelf
        for layer in manifest.blobs:
            path = self.blob(layer.digest)
            if path is None:
                raise StoreError(f"{name.shown} was not stored: {layer.digest} is not here")
            if path.stat().st_size != layer.size:
                raise StoreError(
                    f"{name.shown} was not stored: {path} has {path.stat().st_size} bytes "
                    f"instead of {layer.size}"
                )
            if path.parent != shelf.blobs:
                link_blob(path, shelf.blob_path(layer.digest))
        name = shelf.place(name)
        try:
            before = shelf.find(name)
        except StoreError:
            before = None  # a damaged manifest is replaced, which is the way to repair it
        self._incoming.write(shelf.manifests / name.path, raw)
        if before is not None:
            self._drop_unused(before.manifest)
        stored = shelf.find(name)
        assert stored is not None
        return stored.describe()

    def _drop_unused(self, manifest: ImageManifest) -> None:
        """Delete those blobs that no model has any more."""
        shelf = self._layout.shelf
        try:
            used = {layer.digest for model in shelf.models() for layer in model.manifest.blobs}
        except StoreError:
            return  # nobody knows what a damaged manifest needs
        for layer in manifest.blobs:
            if layer.digest not in used:
                path = shelf.locate(layer)
                path.unlink(missing_ok=True)
                shelf.checked.forget(path)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with explained_os_errors(self.home):
            self._layout.create()
            yield

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._writing(), exclusive_lock(self._layout.lock, lambda: None):
            OldShelf(self._layout.shelf).move(self._incoming)
            self._incoming.sweep()
            yield

    def _shelves(self) -> Sequence[Shelf]:
        """Where models are looked for, in order; what is in the old layout moves first."""
        ours: list[Shelf] = [self._layout.shelf]
        old = OldShelf(self._layout.shelf)
        if not old.is_empty:
            try:
                with self._changing():
                    pass
            except StoreError:
                ours.append(old)  # it can't be written to, and is read as it is
        return [*ours, *self._layout.ollama_shelves()]

    def _all(self) -> Iterator[tuple[Shelf, RegistryName]]:
        seen = set()
        for shelf in self._shelves():
            for name in shelf.names():
                if name.key not in seen:
                    seen.add(name.key)
                    yield shelf, name

    def _find(self, name: str) -> KeptModel | StoredModel | None:
        """What is on this machine of a name: in a store, or, of a path, a file."""
        reference = parse_model_name(name)
        if isinstance(reference, FileReference):
            return model_file(name, reference.path)
        kept = self._find_kept(reference)
        # `models/thing` may be a name, and may be a path.
        if kept is None and "/" in name and Path(name).exists():
            return model_file(name, Path(name))
        return kept

    def _find_kept(self, reference: KeptReference) -> KeptModel | None:
        name = stored_name(reference)
        known = _known(reference)
        names = [name] if known is None else [name, parse_kept_name(known.name)]
        for shelf in self._shelves():
            for each in names:
                model = shelf.find(each)
                if model is not None:
                    return model
        return None

    def _kept(self, name: str) -> KeptModel:
        """A model of a store, ours or Ollama's. Raises `ModelNotFoundError` where it isn't one."""
        found = self._find(name)
        if isinstance(found, StoredModel):
            raise ModelNotFoundError(
                f"{name} is a file outside the store, which has no hashes, and which Caudal "
                "leaves alone"
            )
        if found is None:
            raise ModelNotFoundError(f"{name} is not in the store; to see what is: caudal list")
        return found

    def _verified(self, model: KeptModel, progress: ProgressCallback) -> CheckedModel:
        damage = self._find_damage(model, progress, again=True)
        size = sum(layer.size for layer in model.weights)
        return CheckedModel(model.shown_name, size, damage)

    def _find_damage(
        self, model: KeptModel, progress: ProgressCallback, *, again: bool
    ) -> str | None:
        size = sum(layer.size for layer in model.blobs)

        def report(done: int) -> None:
            progress(PullProgress(PullStage.VERIFYING, model.shown_name, done, size))

        with explained_os_errors(self.home):
            return model.find_damage(again=again, report=report)


def _repair(model: KeptModel) -> str:
    if model.origin is ModelOrigin.OLLAMA:
        return f"ollama pull {model.name.ollama}"
    return f"caudal pull {model.shown_name}"


def _known(reference: KeptReference) -> KnownModel | None:
    """The model that Caudal knows by this name."""
    if not isinstance(reference, RegistryName):
        return None
    return find_known_model(reference.shown.lower())


def _not_here(name: str) -> ModelNotFoundError:
    reference = parse_model_name(name)
    assert not isinstance(reference, FileReference)
    _require_pullable(reference)
    known = _known(reference)
    size = f" ({known.size / 1e6:.0f} MB)" if known else ""
    return ModelNotFoundError(
        f"{name} is not on this machine yet. Fetch it with: caudal pull {name}{size}"
    )


def _require_pullable(reference: KeptReference | FileReference) -> KnownModel | PackageReference:
    """What a pull would fetch.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    if isinstance(reference, PackageReference):
        return reference
    assert not isinstance(reference, FileReference)
    known = _known(reference)
    if known is not None:
        return known
    names = known_names()
    shown = reference.shown if isinstance(reference, RegistryName) else reference.name
    close = [name for name in names if name.startswith(shown)]
    close = close or difflib.get_close_matches(shown, names, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]}?" if close else f"Known models: {', '.join(names)}."
    raise ModelNotFoundError(
        f"there is no model called {shown}. {hint} A .gguf file's path or pypi:PACKAGE works too."
    )
