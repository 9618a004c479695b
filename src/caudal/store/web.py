"""Pulling a GGUF file from the web by its URL: resumable as long as it stays the same."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

import httpx2

from caudal.errors import ModelNotFoundError, StoreError
from caudal.formats.split_names import SplitName
from caudal.store import oci
from caudal.store.disk import explained_os_errors, require_free_space
from caudal.store.image_config import config_of
from caudal.store.names import UrlReference
from caudal.store.oci import Layer
from caudal.store.progress import ProgressCallback, PullProgress, PullStage, ignore_progress
from caudal.store.stored import StoredModel
from caudal.store.transfer.download import CONNECTIONS, RefusedContentError
from caudal.store.transfer.fetch import Fetch, Fetches
from caudal.store.transfer.http import open_client, sent, shown
from caudal.store.transfer.ranges import Range
from caudal.store.transfer.retries import check_transient, patiently
from caudal.store.transfer.watched import watched

if TYPE_CHECKING:
    from caudal.store.store import Store

ETAGS = "caudal.etags"
"""The annotation with what the server called the files."""
_MAGIC = b"GGUF"


def pull_url(
    store: Store, reference: UrlReference, progress: ProgressCallback = ignore_progress
) -> StoredModel:
    """Make a GGUF file of the web be in the store; of a split one, all files.

    Args:
        store: Where to.
        reference: Which.
        progress: Told ten times a second, on this thread; what it raises ends the pull.

    Raises:
        ModelNotFoundError: There is no such file.
        StoreError: It can't be fetched, or isn't a GGUF file.
    """
    with explained_os_errors(store.home):
        return asyncio.run(_pull(store, reference, progress))


async def _pull(store: Store, reference: UrlReference, progress: ProgressCallback) -> StoredModel:
    def asking() -> None:
        progress(PullProgress(PullStage.RESOLVING, reference.name))

    def retrying(reason: str) -> None:
        progress(PullProgress(PullStage.RETRYING, reference.name, detail=reason))

    asking()
    async with open_client(CONNECTIONS) as client:
        sources = await watched(_look_up(client, reference.url, retrying), asking)
        etags = "\n".join(source.etag for source in sources)
        if _is_here(store, reference, etags):
            return store.resolve(reference.name)
        layers: dict[str, Layer] = {}
        fetches = [_fetch(store, source, layers) for source in sources]
        needed = sum(fetch.size - fetch.completed for fetch in fetches)
        require_free_space(fetches[0].path.parent, needed, f"pulling {reference.name}")
        await Fetches(fetches, progress).run()
    progress(PullProgress(PullStage.WRITING, reference.name))
    paths = {}
    for source in sources:
        path = store.blob(layers[source.name].digest)
        if path is None:
            raise StoreError(f"{reference.name} was not stored: {source.name} is gone again")
        paths[source.name] = path
    return store.commit(
        reference.name,
        config_of(paths).to_mapping(),
        [layers[source.name] for source in sources],
        {ETAGS: etags},
    )


def _is_here(store: Store, reference: UrlReference, etags: str) -> bool:
    """Whether the store has what the server has."""
    try:
        manifest, _ = store.manifest(reference.name)
    except (ModelNotFoundError, StoreError):
        return False
    same = manifest.annotations.get(ETAGS) == etags
    return same and all(store.is_whole(layer.digest, layer.size) for layer in manifest.blobs)


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A file of the web.

    Attributes:
        client: Asks for it.
        url: Where it is.
        name: What it is called.
        size: Its bytes.
        etag: What the server calls its content; some other unique text where it doesn't.
        is_strong: Whether that names these bytes exactly.
    """

    client: httpx2.AsyncClient
    url: httpx2.URL
    name: str
    size: int
    etag: str
    is_strong: bool

    @asynccontextmanager
    async def open(self, wanted: Range) -> AsyncIterator[httpx2.Response]:
        """Ask for a range.

        Raises:
            RefusedContentError: It is another file by now.
        """
        headers = {"Range": f"bytes={wanted[0]}-{wanted[1] - 1}"}
        if self.is_strong:
            headers["If-Range"] = self.etag
        async with sent(self.client, "GET", self.url, headers) as response:
            if response.status_code in (200, 206) and _etag(response) not in ("", self.etag):
                raise RefusedContentError(
                    f"{shown(self.url)} has changed while it was fetched; pull it again"
                )
            yield response


async def _look_up(
    client: httpx2.AsyncClient, text: str, tell: Callable[[str], None]
) -> Sequence[UrlSource]:
    """All files that belong to the one at a URL."""
    url = httpx2.URL(text)
    directory, _, file = url.path.rpartition("/")
    split = SplitName.parse(file)
    names = [file] if split is None or not split.count else split.names
    sources = []
    for name in names:
        each = url.copy_with(path=f"{directory}/{name}")

        async def ask(each: httpx2.URL = each) -> UrlSource:
            async with sent(client, "GET", each, {"Range": "bytes=0-3"}) as response:
                return _described(client, each, response)

        sources.append(await patiently(ask, f"asking {url.host}", tell))
    return sources


def _described(client: httpx2.AsyncClient, url: httpx2.URL, response: httpx2.Response) -> UrlSource:
    check_transient(response)
    status = response.status_code
    if status in (404, 410):
        raise ModelNotFoundError(f"there is no {shown(url)}")
    if status == 206:
        length = response.headers.get("Content-Range", "").rpartition("/")[2]
    elif status == 200:
        length = response.headers.get("Content-Length", "")
    else:
        reason = f"{status} {response.reason_phrase}".strip()
        raise StoreError(f"{shown(url)} can't be fetched: the server answered {reason}")
    if not length.isdecimal():
        raise StoreError(f"{shown(url)} can't be fetched: the server doesn't say how long it is")
    etag = _etag(response)
    return UrlSource(
        client,
        url,
        PurePosixPath(unquote(url.path)).name,
        int(length),
        etag or f"unknown {uuid.uuid4()}",
        etag.startswith('"'),
    )


def _etag(response: httpx2.Response) -> str:
    """What the server calls the content, or when that was changed; empty where it doesn't say."""
    return response.headers.get("ETag") or response.headers.get("Last-Modified") or ""


def _fetch(store: Store, source: UrlSource, layers: dict[str, Layer]) -> Fetch:
    path = store.partial(f"sha256:{hashlib.sha256(str(source.url).encode()).hexdigest()}")

    def keep(grown: Path, report: Callable[[int], None]) -> None:
        with grown.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise RefusedContentError(
                    f"{shown(source.url)} isn't a GGUF file, and was discarded"
                )
        blob = store.add_blob(grown, move=True, report=report)
        title = {oci.TITLE: source.name} if SplitName.parse(source.name) else {}
        layers[source.name] = Layer(oci.MODEL_TYPE, blob.digest, blob.size, title)

    return Fetch(
        source,
        path,
        source.size,
        item=source.name,
        etag=source.etag,
        whole=lambda _: False,
        keep=keep,
    )
