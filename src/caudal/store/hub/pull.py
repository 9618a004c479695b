"""Pulling a model from the Hugging Face Hub.

What its library's cache has is linked, not copied, and stays the cache's too. What must be fetched
goes straight into the store, so that it is on the disk once, and gone when the model is removed.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import oci
from caudal.store.disk import explained_os_errors, require_free_space
from caudal.store.facts import annotations_of
from caudal.store.hub.repository import HubRepository, explained_hub_errors, find_cached, look_up
from caudal.store.hub.selection import choose_files
from caudal.store.image_config import config_of
from caudal.store.incoming import WrongDigestError
from caudal.store.names import HubReference
from caudal.store.oci import Layer
from caudal.store.progress import ProgressCallback, PullProgress, PullStage, ignore_progress
from caudal.store.stored import StoredModel

if TYPE_CHECKING:
    from caudal.store.store import Store

_FILES_AT_ONCE = 4
_TICK_SECONDS = 0.1
_EXTRAS = {
    "template": oci.TEMPLATE_TYPE,
    "system": oci.SYSTEM_TYPE,
    "params": oci.PARAMS_TYPE,
}
"""Files beside GGUF ones that say how they are asked (huggingface.co/docs/hub/ollama)."""
_MOST_EXTRA_BYTES = 1 << 20


def pull_from_hub(
    store: Store, reference: HubReference, progress: ProgressCallback = ignore_progress
) -> StoredModel:
    """Make a model of the Hub be in the store, whole and checked.

    Args:
        store: Where to.
        reference: Which.
        progress: Told ten times a second, on this thread; what it raises ends the pull.

    Raises:
        ModelNotFoundError: There is no such repository, or nothing in it that was asked for.
        StoreError: It can't be fetched, or isn't what the Hub says that it is.
    """
    progress(PullProgress(PullStage.RESOLVING, reference.name))
    repository = look_up(f"{reference.organisation}/{reference.repository}")
    chosen = choose_files(tuple(repository.files), reference.selection, f"hf:{repository.name}")
    is_folder = not chosen[0].lower().endswith(".gguf")
    extras = [] if is_folder else _extras(repository)
    with explained_os_errors(store.home):
        layers = _HubPull(store, repository, progress).fetch([*chosen, *extras])
    weights = {name: layers[name] for name in chosen}
    titled = len(chosen) > 1
    described = [
        Layer.of_file(oci.MODEL_TYPE, layer.digest, layer.size, _title(name, is_folder))
        if titled
        else Layer(oci.MODEL_TYPE, layer.digest, layer.size)
        for name, layer in weights.items()
    ]
    described += [Layer(_EXTRAS[name], layers[name].digest, layers[name].size) for name in extras]
    paths: dict[str, Path] = {}
    for name, layer in weights.items():
        path = store.blob(layer.digest)
        if path is None:
            raise StoreError(f"{reference.name} was not stored: {name} is gone again")
        paths[_title(name, is_folder)] = path
    progress(PullProgress(PullStage.WRITING, reference.name))
    return store.commit(
        reference.name,
        config_of(paths).to_mapping(),
        described,
        annotations_of(licence=repository.licence, description="", sources=()),
    )


def _title(name: str, is_folder: bool) -> str:
    return name if is_folder else name.rpartition("/")[2]


def _extras(repository: HubRepository) -> list[str]:
    return [
        name
        for name in _EXTRAS
        if name in repository.files and repository.files[name].size <= _MOST_EXTRA_BYTES
    ]


class _File:
    """How far one of them is."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.stage = PullStage.DOWNLOADING
        self.completed = 0
        self.digest = ""

    def event(self) -> PullProgress:
        return PullProgress(self.stage, self.name, self.completed, self.size, "", self.digest)


class _HubPull:
    def __init__(self, store: Store, repository: HubRepository, progress: ProgressCallback) -> None:
        self._store = store
        self._repository = repository
        self._progress = progress
        self._stopped = threading.Event()
        key = hashlib.sha256(repository.name.encode()).hexdigest()[:16]
        self._folder = store.partial(f"sha256:{'0' * 64}").parent / f"hub-{key}"

    def fetch(self, names: Sequence[str]) -> Mapping[str, Layer]:
        """Put files into the store; returns what they are there, by their paths."""
        sizes = {name: self._repository.files[name].size for name in names}
        cached = {name: find_cached(self._repository, name) for name in names}
        needed = sum(size for name, size in sizes.items() if cached[name] is None)
        require_free_space(self._folder.parent, needed - _bytes_in(self._folder), "pulling it")
        files = [_File(name, sizes[name]) for name in names]
        told: dict[str, tuple[PullStage, int]] = {}
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            work: dict[Future[Layer], _File] = {
                pool.submit(self._fetch, file, cached[file.name]): file for file in files
            }
            try:
                waiting = set(work)
                while waiting:
                    done, waiting = wait(waiting, _TICK_SECONDS, FIRST_COMPLETED)
                    for file in files:
                        if told.get(file.name) != (file.stage, file.completed):
                            told[file.name] = (file.stage, file.completed)
                            self._progress(file.event())
                    for future in done:
                        future.result()
                    self._progress(files[0].event())
            finally:
                self._stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        return {file.name: future.result() for future, file in work.items()}

    def _fetch(self, file: _File, cached: Path | None) -> Layer:
        """One file; in a thread of its own."""
        promised = self._repository.files[file.name].sha256
        digest = f"sha256:{promised}" if promised else None
        file.digest = digest or ""
        if cached is None and digest is not None and self._store.is_whole(digest, file.size):
            file.completed = file.size
            return Layer(oci.MODEL_TYPE, digest, file.size)
        path = cached or self._download(file)
        file.stage, file.completed = PullStage.VERIFYING, 0
        try:
            if cached is not None:
                blob = self._store.link_file(path, digest=digest, report=self._counter(file))
            else:
                blob = self._store.add_blob(
                    path, digest=digest, move=True, report=self._counter(file)
                )
        except WrongDigestError as error:
            raise StoreError(
                f"{file.name} of hf:{self._repository.name} isn't what the Hub says that it is: "
                f"{error.reason}"
            ) from error
        file.stage, file.digest = PullStage.DOWNLOADING, blob.digest
        file.completed = file.size
        return Layer(oci.MODEL_TYPE, blob.digest, blob.size)

    def _counter(self, file: _File) -> Callable[[int], None]:
        def count(completed: int) -> None:
            if self._stopped.is_set():
                raise InterruptedError
            file.completed = completed

        return count

    def _download(self, file: _File) -> Path:
        from huggingface_hub import hf_hub_download

        if self._repository.is_offline:
            raise ModelNotFoundError(
                f"{file.name} of hf:{self._repository.name} isn't cached, and HF_HUB_OFFLINE is set"
            )
        with explained_hub_errors(self._repository.name):
            return Path(
                hf_hub_download(
                    self._repository.name,
                    file.name,
                    revision=self._repository.commit,
                    local_dir=self._folder,
                    library_name="caudal",
                    tqdm_class=_bar_of(file, self._stopped),
                )
            )


def _bar_of(file: _File, stopped: threading.Event) -> Any:
    """What the library tells how far a file is, as it tells a progress bar of tqdm."""

    class Bar:
        def __init__(self, *_: object, **options: Any) -> None:
            # Of what comes in deduplicated, one bar counts what is transferred, one the file.
            self._counts = "downloading bytes" not in str(options.get("desc", ""))
            self.total = options.get("total")
            self.n = 0
            if self._counts:
                self._set(int(options.get("initial") or 0))

        def _set(self, count: int) -> None:
            self.n = count
            if stopped.is_set():
                raise InterruptedError
            file.completed = count

        def update(self, count: float | None = 1) -> None:
            if self._counts:
                self._set(self.n + int(count or 0))

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __getattr__(self, _: str) -> Any:
            """All else is about how a bar looks."""
            return lambda *_, **__: None

    return Bar


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
