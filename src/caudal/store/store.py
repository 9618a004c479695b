"""The store: model names on one side, verified files on disk on the other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from caudal.errors import ForeignModelError, StoreError
from caudal.store import oci
from caudal.store.blob_store import BlobStore
from caudal.store.disk import explained_os_errors
from caudal.store.facts import REFERENCE
from caudal.store.incoming import MissingBlobError, link_blob
from caudal.store.lookup import Lookup
from caudal.store.names import (
    FileReference,
    RegistryName,
    parse_kept_name,
    parse_model_name,
)
from caudal.store.oci import ImageManifest, Layer
from caudal.store.packed import PackedFiles
from caudal.store.progress import ProgressCallback, PullProgress, PullStage, ignore_progress
from caudal.store.pullable import not_here
from caudal.store.shelf import KeptModel, repair_command
from caudal.store.stored import CheckedModel, ModelOrigin, StoredModel

_ANNOTATED_OS = {"architecture": "amd64", "os": "linux"}
"""What the specification of images asks for, and Ollama writes, though models run anywhere."""


class Store(BlobStore):
    """Models on this machine: those in a directory of ours, and those that Ollama has.

    Several stores may share a directory; see `BlobStore` for how they get along.

    Args:
        home: The store's directory, created when something is pulled; None for the default.
    """

    def __init__(self, home: Path | None = None) -> None:
        super().__init__(home)
        self._lookup = Lookup(self._layout, self._move)

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
        found = self._lookup.find(name)
        if isinstance(found, StoredModel):
            return found
        if found is None:
            raise not_here(name)
        try:
            return self._whole(found, progress)
        except StoreError:
            now = self._lookup.find(name)
            if isinstance(now, KeptModel) and now.is_same(found):
                raise
        return self.resolve(name, progress)  # another took its place, and its files are gone

    def find(self, name: str, progress: ProgressCallback = ignore_progress) -> StoredModel | None:
        """The model if it is here; None if it isn't, but a pull may help.

        Raises:
            ModelNotFoundError: There is no such name or file, so that no pull would help.
            StoreError: It is here but damaged; says how to repair it.
        """
        found = self._lookup.find(name)
        if found is None:
            return None
        return found if isinstance(found, StoredModel) else self.resolve(name, progress)

    def pull(
        self, name: str, progress: ProgressCallback = ignore_progress, *, insecure: bool = False
    ) -> StoredModel:
        """Fetch a model, or bring it up to date.

        A model that is already here is checked against its hash and repaired if need be. An
        interrupted pull leaves the store as it was; the next one goes on from there.

        Args:
            name: Any form of a model's name; the path of a file is merely resolved.
            progress: Called with every step, on the calling thread; what it raises ends the pull.
            insecure: Whether a registry elsewhere may be asked without encryption, too.

        Raises:
            ModelNotFoundError: There is no such name or file.
            StoreError: It couldn't be fetched, verified or written.
        """
        # Imported here, so that serving a model that is here doesn't load an HTTP client.
        from caudal.store.pulling import pull_model

        return pull_model(self, name, progress, insecure=insecure)

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
            yield self._verified(self._lookup.kept(name), progress)
            return
        for shelf, each in self._lookup.names():
            try:
                model = shelf.find(each)
            except StoreError as error:
                repair = repair_command(each, each.shown, is_ours=shelf.is_ours)
                yield CheckedModel(each.shown, 0, str(error), repair)
                continue
            if model is not None:
                yield self._verified(model, progress)

    def list(self, damaged: Callable[[StoreError], None] | None = None) -> Sequence[StoredModel]:
        """All models that have weights, by name; some of Ollama's run elsewhere.

        Args:
            damaged: Told of each manifest of ours that is damaged; None raises the first.

        Raises:
            StoreError: A manifest of ours is damaged.
        """
        models = []
        for shelf, name in self._lookup.names():
            try:
                model = shelf.find(name)
            except StoreError as error:
                if shelf.is_ours:  # of Ollama's, Ollama says nothing either
                    if damaged is None:
                        raise
                    damaged(error)
                continue
            if model is not None and model.weights:
                models.append(model.outline())
        return sorted(models, key=lambda model: model.name)

    def mark(self) -> Hashable:
        """What is another when `list` says something else; looking costs little."""
        shelves = (self._layout.shelf, *self._layout.ollama_shelves())
        return tuple(shelf.mark() for shelf in shelves)

    def manifest(self, name: str) -> tuple[ImageManifest, bytes]:
        """What a model consists of: its manifest, and the bytes that its digest is of.

        Raises:
            ModelNotFoundError: It isn't in the store.
            StoreError: The manifest is damaged.
        """
        model = self._lookup.kept(name)
        return model.manifest, model.raw

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
            MissingBlobError: A blob isn't here.
            StoreError: A blob has another size; or the store can't be written to.
        """
        kept, reference = parse_kept_name(name), parse_model_name(name)
        said = dict(annotations or {})
        if not isinstance(reference, RegistryName | FileReference):
            said[REFERENCE] = reference.name
        content = json.dumps(_ANNOTATED_OS | dict(config)).encode()
        with self._changing():  # in which nobody deletes what another model has just let go of
            blob = self.add_blob([content])
            layer = Layer(oci.CONFIG_TYPE, blob.digest, blob.size)
            manifest = ImageManifest(layer, tuple(layers), said)
            return self._commit(kept, manifest, manifest.to_bytes())

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
            model = self._lookup.kept(source)
            return self._commit(name, model.manifest, model.raw)

    def remove(self, name: str) -> StoredModel:
        """Delete a model from the store and its packed weights; what another name shares stays.

        Returns:
            What was removed; its paths may no longer exist.

        Raises:
            ModelNotFoundError: It isn't in the store.
            ForeignModelError: It is in Ollama's directory only.
            StoreError: The store cannot be written to.
        """
        model = self._lookup.kept(name)
        if model.origin is ModelOrigin.OLLAMA:
            directory = model.locate(model.manifest.config).parents[1]
            remedy = f"ollama rm {model.name.ollama}"
            raise ForeignModelError(model.shown_name, str(directory), remedy)
        with self._changing():
            model = self._lookup.kept(name)
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

    def _commit(self, name: RegistryName, manifest: ImageManifest, raw: bytes) -> StoredModel:
        shelf = self._layout.shelf
        for layer in manifest.blobs:
            path = self.blob(layer.digest)
            if path is None:
                raise MissingBlobError(name.shown, layer.digest)
            if path.stat().st_size != layer.size:
                raise StoreError(
                    f"{name.shown} was not stored: {path} has {path.stat().st_size} bytes "
                    f"instead of {layer.size}"
                )
            if path.parent != shelf.blobs:
                link_blob(path, shelf.blob_path(layer.digest))
        name = shelf.place(name)
        shelf.kept(name, manifest, raw).describe()  # before it takes another's place
        try:
            before = shelf.find(name)
        except StoreError:
            before = None  # a damaged manifest is replaced, which is the way to repair it
        self._incoming.write(shelf.manifests / name.path, raw)
        if before is not None:
            self._drop_unused(before.manifest)
        return shelf.kept(name, manifest, raw).describe()

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

    def _whole(self, model: KeptModel, progress: ProgressCallback) -> StoredModel:
        damage = self._find_damage(model, progress, again=False)
        if damage is not None:
            raise StoreError(
                f"{model.shown_name} in the store is damaged: {damage}. Repair it with: "
                f"{model.repair}"
            )
        return model.describe()

    def _verified(self, model: KeptModel, progress: ProgressCallback) -> CheckedModel:
        damage = self._find_damage(model, progress, again=True)
        size = sum(layer.size for layer in model.weights)
        return CheckedModel(model.shown_name, size, damage, model.repair)

    def _find_damage(
        self, model: KeptModel, progress: ProgressCallback, *, again: bool
    ) -> str | None:
        size = sum(layer.size for layer in model.blobs)

        def report(done: int) -> None:
            progress(PullProgress(PullStage.VERIFYING, model.shown_name, done, size))

        with explained_os_errors(self.home):
            return model.find_damage(again=again, report=report)
