"""Pushing a model to a registry: its blobs that aren't there, then its manifest."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from caudal.errors import StoreError
from caudal.store.disk import explained_os_errors
from caudal.store.names import RegistryName
from caudal.store.oci import MANIFEST_TYPE, ImageManifest, Layer
from caudal.store.progress import ProgressCallback, PullProgress, PullStage, ignore_progress
from caudal.store.registry.client import RegistryClient, Repository, layer_in_words
from caudal.store.registry.upload import Upload, UploadNotes
from caudal.store.transfer.download import CONNECTIONS, first_of
from caudal.store.transfer.http import open_client
from caudal.store.transfer.watched import watched

if TYPE_CHECKING:
    from caudal.store.store import Store

_BLOBS_AT_ONCE = 3


def push_image(
    store: Store,
    name: RegistryName,
    progress: ProgressCallback = ignore_progress,
    *,
    insecure: bool = False,
) -> None:
    """Make a registry have a model under its name.

    What it has already isn't sent, and what another push has begun is gone on with.

    Args:
        store: Where from.
        name: Which model; its host is the registry.
        progress: Told ten times a second, on this thread; what it raises ends the push.
        insecure: Whether a registry elsewhere may be asked without encryption, too.

    Raises:
        ModelNotFoundError: It isn't in the store.
        StoreError: It isn't whole, or the registry doesn't take it.
    """
    manifest, raw = store.manifest(name.full)
    paths = {}
    for layer in manifest.blobs:
        path = store.blob(layer.digest)
        if path is None:
            raise StoreError(f"{name.shown} lacks {layer_in_words(layer)}; see: caudal verify")
        paths[layer.digest] = path
    push = _Push(store, name, Repository.of(name, insecure=insecure), manifest, paths, progress)
    with explained_os_errors(store.home):
        asyncio.run(push.run(raw))


@dataclass
class _Blob:
    """How far one is.

    Attributes:
        layer: Which.
        upload: What sends it; None until it is known that it must be sent.
        is_there: Whether the registry has it.
    """

    layer: Layer
    upload: Upload | None = None
    is_there: bool = False

    @property
    def completed(self) -> int:
        if self.is_there:
            return self.layer.size
        return 0 if self.upload is None else self.upload.sent

    def event(self, stage: PullStage = PullStage.UPLOADING, detail: str = "") -> PullProgress:
        layer = self.layer
        return PullProgress(
            stage, layer_in_words(layer), self.completed, layer.size, detail, layer.digest
        )


class _Push:
    def __init__(
        self,
        store: Store,
        name: RegistryName,
        repository: Repository,
        manifest: ImageManifest,
        paths: Mapping[str, Path],
        progress: ProgressCallback,
    ) -> None:
        self._store = store
        self._name = name
        self._repository = repository
        self._paths = paths
        self._progress = progress
        self._blobs = [
            _Blob(each) for each in {each.digest: each for each in manifest.blobs}.values()
        ]
        self._told: dict[str, int] = {}
        self._at_once = asyncio.Semaphore(_BLOBS_AT_ONCE)

    async def run(self, raw: bytes) -> None:
        announcing = PullProgress(PullStage.ANNOUNCING, self._name.shown)
        media_type = json.loads(raw).get("mediaType", MANIFEST_TYPE)
        async with open_client(CONNECTIONS) as http:
            client = RegistryClient(http, self._repository, "pull,push", self._retrying)
            await watched(self._send_all(client), self._tick)
            self._progress(announcing)
            await watched(
                client.put_manifest(self._name.tag, raw, media_type),
                lambda: self._progress(announcing),
            )

    def _retrying(self, reason: str) -> None:
        self._progress(PullProgress(PullStage.RETRYING, self._name.shown, detail=reason))

    async def _send_all(self, client: RegistryClient) -> None:
        elsewhere = self._elsewhere()
        try:
            async with asyncio.TaskGroup() as group:
                for blob in self._blobs:
                    group.create_task(self._send(client, blob, elsewhere))
        except BaseExceptionGroup as error:
            raise first_of(error) from None

    async def _send(
        self, client: RegistryClient, blob: _Blob, elsewhere: Mapping[str, str]
    ) -> None:
        digest = blob.layer.digest
        async with self._at_once:
            if not await client.has_blob(digest):
                blob.upload = Upload(
                    client,
                    blob.layer,
                    self._paths[digest],
                    UploadNotes.of(self._store.partial(digest).parent, client, digest),
                    elsewhere.get(digest, ""),
                    lambda reason: self._progress(blob.event(PullStage.RETRYING, reason)),
                )
                await blob.upload.run()
        blob.is_there = True

    def _elsewhere(self) -> Mapping[str, str]:
        """In which other repositories of the registry blobs may be: other models' of its, here."""
        found: dict[str, str] = {}
        shelf = self._store.layout.shelf
        for name in shelf.names():
            path = f"{name.namespace}/{name.model}"
            if name.host != self._name.host or path == self._repository.path:
                continue
            with contextlib.suppress(StoreError):  # a damaged manifest says nothing
                if model := shelf.find(name):
                    found |= {layer.digest: path for layer in model.manifest.blobs}
        return found

    def _tick(self) -> None:
        """Tell what has changed; and something, so that whoever listens can end it."""
        changed = [
            blob for blob in self._blobs if self._told.get(blob.layer.digest) != blob.completed
        ]
        for blob in changed or self._blobs[:1]:
            self._told[blob.layer.digest] = blob.completed
            self._progress(blob.event())
