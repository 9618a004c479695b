"""Pulling a model from a registry: its manifest, then all blobs that aren't here, then its name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from caudal.errors import StoreError
from caudal.store.disk import explained_os_errors, require_free_space
from caudal.store.names import RegistryName
from caudal.store.oci import MODEL_TYPES, ImageManifest, Layer
from caudal.store.progress import ProgressCallback, PullProgress, PullStage, ignore_progress
from caudal.store.registry.client import RegistryClient, Repository, layer_in_words
from caudal.store.stored import StoredModel
from caudal.store.transfer.download import CONNECTIONS
from caudal.store.transfer.fetch import Fetch, Fetches
from caudal.store.transfer.http import open_client
from caudal.store.transfer.partial import count_there
from caudal.store.transfer.watched import watched

if TYPE_CHECKING:
    from caudal.store.store import Store


def pull_image(
    store: Store,
    name: RegistryName,
    progress: ProgressCallback = ignore_progress,
    *,
    insecure: bool = False,
) -> StoredModel:
    """Make a model that a registry has be in the store, whole and checked.

    What an earlier pull left is gone on from, whether it was ended or killed. A blob that another
    thread or process is fetching is waited for.

    Args:
        store: Where to.
        name: Which model.
        progress: Told ten times a second, on this thread; what it raises ends the pull.
        insecure: Whether a registry elsewhere may be asked without encryption, too.

    Raises:
        ModelNotFoundError: The registry has no such model.
        StoreError: It can't be fetched, or isn't what it is said to be; the store is as before.
    """
    repository = Repository.of(name, insecure=insecure)
    with explained_os_errors(store.home):
        return asyncio.run(_pull(store, name, repository, progress))


async def _pull(
    store: Store, name: RegistryName, repository: Repository, progress: ProgressCallback
) -> StoredModel:
    def asking() -> None:
        progress(PullProgress(PullStage.RESOLVING, name.shown))

    def retrying(reason: str) -> None:
        progress(PullProgress(PullStage.RETRYING, name.shown, detail=reason))

    asking()
    async with open_client(CONNECTIONS) as http:
        client = RegistryClient(http, repository, "pull", retrying)
        raw = await watched(client.manifest(name.tag), asking)
        try:
            manifest = ImageManifest.from_bytes(raw)
        except ValueError as error:
            raise StoreError(f"{name.full} is no model: {error}") from error
        if not manifest.of_type(*MODEL_TYPES):
            kinds = sorted({layer.media_type for layer in manifest.layers})[:5]
            raise StoreError(
                f"{name.full} has no weights that Caudal reads; it has "
                + (", ".join(kinds) or "nothing at all")
            )
        layers = {each.digest: each for each in manifest.blobs}.values()
        fetches = _missing(store, [_fetch(store, client, each) for each in layers], progress)
        if fetches:
            needed = sum(fetch.size - fetch.completed for fetch in fetches)
            require_free_space(fetches[0].path.parent, needed, f"pulling {name.shown}")
            await Fetches(fetches, progress).run()
    progress(PullProgress(PullStage.WRITING, name.shown))
    return store.commit_manifest(name.full, raw)


def _missing(store: Store, fetches: Sequence[Fetch], progress: ProgressCallback) -> Sequence[Fetch]:
    """What isn't here yet, or is damaged."""
    missing = []
    for fetch in fetches:

        def checking(completed: int, fetch: Fetch = fetch) -> None:
            fetch.completed = completed
            progress(fetch.event(PullStage.VERIFYING))

        if store.is_whole(fetch.digest, fetch.size, checking):
            fetch.completed = fetch.size
            fetch.clear()
            progress(fetch.event())
        else:
            fetch.completed = count_there(fetch.path, fetch.size)
            missing.append(fetch)
    return missing


def _fetch(store: Store, client: RegistryClient, layer: Layer) -> Fetch:
    digest = layer.digest
    return Fetch(
        client.blob(digest),
        store.partial(digest),
        layer.size,
        item=layer_in_words(layer),
        digest=digest,
        whole=lambda report: store.is_whole(digest, layer.size, report),
        keep=lambda path, report: store.add_blob(path, digest=digest, move=True, report=report),
    )
