"""Pulling a model from the Hugging Face Hub.

Its library says what there is, and with which token to ask for it. What its cache has is linked,
not copied, and stays the cache's too. All else goes straight into the store, so that it is on the
disk once, and gone when the model is removed; and in ranges, for the library begins anew after a
kill.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import oci
from caudal.store.disk import explained_os_errors, require_free_space
from caudal.store.facts import annotations_of
from caudal.store.hub.repository import HubRepository, find_cached, look_up
from caudal.store.hub.selection import choose_files
from caudal.store.image_config import config_of
from caudal.store.incoming import BlobInfo
from caudal.store.names import HubReference
from caudal.store.oci import Layer
from caudal.store.progress import ProgressCallback, PullProgress, PullStage, ignore_progress
from caudal.store.stored import StoredModel
from caudal.store.transfer.download import CONNECTIONS, RefusedContentError
from caudal.store.transfer.fetch import Fetch, Fetches
from caudal.store.transfer.http import open_client, sent
from caudal.store.transfer.ranges import Range
from caudal.store.transfer.watched import watched

if TYPE_CHECKING:
    from caudal.store.store import Store

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
    with explained_os_errors(store.home):
        return asyncio.run(_pull(store, reference, progress))


async def _pull(store: Store, reference: HubReference, progress: ProgressCallback) -> StoredModel:
    def asking() -> None:
        progress(PullProgress(PullStage.RESOLVING, reference.name))

    asking()
    name = f"{reference.organisation}/{reference.repository}"
    repository = await watched(asyncio.to_thread(look_up, name), asking)
    what = f"hf:{repository.name}" + (" in the cache" if repository.is_offline else "")
    chosen = choose_files(tuple(repository.files), reference.selection, what)
    is_folder = not chosen[0].lower().endswith(".gguf")
    extras = [] if is_folder else _extras(repository)
    blobs = await _HubPull(store, repository, progress).run([*chosen, *extras])
    layers = [
        Layer(oci.MODEL_TYPE, blobs[file].digest, blobs[file].size, _annotations(file, chosen))
        for file in chosen
    ]
    layers += [Layer(_EXTRAS[file], blobs[file].digest, blobs[file].size) for file in extras]
    paths: dict[str, Path] = {}
    for file in chosen:
        path = store.blob(blobs[file].digest)
        if path is None:
            raise StoreError(f"{reference.name} was not stored: {file} is gone again")
        paths[_title(file)] = path
    progress(PullProgress(PullStage.WRITING, reference.name))
    return store.commit(
        reference.name,
        config_of(paths).to_mapping(),
        layers,
        annotations_of(licence=repository.licence, description="", sources=()),
    )


def _title(file: str) -> str:
    """What a file is called within its model: parts of a split one lie in no folder."""
    return file.rpartition("/")[2] if file.lower().endswith(".gguf") else file


def _annotations(file: str, chosen: Sequence[str]) -> Mapping[str, str]:
    return {oci.TITLE: _title(file)} if len(chosen) > 1 else {}


def _extras(repository: HubRepository) -> list[str]:
    return [
        name
        for name in _EXTRAS
        if name in repository.files and repository.files[name].size <= _MOST_EXTRA_BYTES
    ]


class _HubPull:
    def __init__(self, store: Store, repository: HubRepository, progress: ProgressCallback) -> None:
        self._store = store
        self._repository = repository
        self._progress = progress
        self._blobs: dict[str, BlobInfo] = {}

    async def run(self, names: Sequence[str]) -> Mapping[str, BlobInfo]:
        """Put files into the store; returns what they are there, by their paths."""
        for name in names:
            cached = find_cached(self._repository, name)
            if cached is not None:
                self._blobs[name] = await self._link(name, cached)
        missing = [name for name in names if name not in self._blobs]
        if missing and self._repository.is_offline:
            raise ModelNotFoundError(
                f"{missing[0]} of hf:{self._repository.name} isn't cached, and HF_HUB_OFFLINE is "
                "set"
            )
        async with open_client(CONNECTIONS) as client:
            fetches = [self._fetch(client, name) for name in missing]
            needed = sum(
                fetch.size - fetch.completed
                for fetch in fetches
                if not fetch.digest or self._store.blob(fetch.digest) is None
            )
            if fetches:
                what = f"pulling hf:{self._repository.name}"
                require_free_space(fetches[0].path.parent, needed, what)
                await Fetches(fetches, self._progress).run()
        for name in missing:
            if name not in self._blobs:  # it was here
                file = self._repository.files[name]
                self._blobs[name] = BlobInfo(f"sha256:{file.sha256}", file.size)
        return self._blobs

    async def _link(self, name: str, cached: Path) -> BlobInfo:
        """Take what the library's cache has."""
        file = self._repository.files[name]
        ended = threading.Event()
        done = 0

        def count(completed: int) -> None:
            nonlocal done
            if ended.is_set():
                raise InterruptedError
            done = completed

        def link() -> BlobInfo:
            digest = f"sha256:{file.sha256}" if file.sha256 else None
            return self._store.link_file(cached, digest=digest, report=count)

        def tell() -> None:
            self._progress(PullProgress(PullStage.VERIFYING, name, done, file.size))

        try:
            return await watched(asyncio.to_thread(link), tell)
        finally:
            ended.set()

    def _fetch(self, client: httpx2.AsyncClient, name: str) -> Fetch:
        file = self._repository.files[name]
        digest = f"sha256:{file.sha256}" if file.sha256 else ""
        # Of small files, the Hub knows no hash but git's.
        unique = f"{self._repository.name}/{self._repository.commit}/{name}"
        key = digest or f"sha256:{hashlib.sha256(unique.encode()).hexdigest()}"

        def keep(path: Path, report: Callable[[int], None]) -> None:
            found = file.other_git_hash(path)
            if found is not None:
                raise RefusedContentError(
                    f"{name} of hf:{self._repository.name} isn't what the Hub says that it is: "
                    f"expected git's {file.git_hash}, got {found}"
                )
            self._blobs[name] = self._store.add_blob(
                path, digest=digest or None, move=True, report=report
            )

        return Fetch(
            HubSource(client, self._repository, name),
            self._store.partial(key),
            file.size,
            item=name,
            digest=digest,
            etag=file.git_hash,
            whole=lambda report: bool(digest) and self._store.is_whole(digest, file.size, report),
            keep=keep,
        )


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a repository, in ranges."""

    client: httpx2.AsyncClient
    repository: HubRepository
    file: str

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.file} of hf:{self.repository.name}"

    @asynccontextmanager
    async def open(self, wanted: Range) -> AsyncIterator[httpx2.Response]:
        """Ask for a range.

        Raises:
            StoreError: It isn't for everybody.
        """
        headers = {"Range": f"bytes={wanted[0]}-{wanted[1] - 1}"}
        token = self.repository.token
        async with sent(
            self.client,
            "GET",
            httpx2.URL(self.repository.url(self.file)),
            headers,
            authorization=f"Bearer {token}" if token else "",
        ) as response:
            if response.status_code in (401, 403):
                raise StoreError(
                    f"{self.name} is for those who accepted its terms, or were let in. Accept "
                    "them on its page, and log in with `hf auth login`, or set HF_TOKEN"
                )
            yield response
