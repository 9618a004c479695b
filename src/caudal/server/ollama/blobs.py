"""`HEAD` and `POST /api/blobs/:digest`: files for `/api/create`, by what is in them."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from caudal.server.served_store import ServedStore, changeable_store, served_store
from caudal.server.tenancy import FOR_ADMINS
from caudal.store import Store
from caudal.store.incoming import WrongDigestError
from caudal.store.oci import parse_digest

router = APIRouter(dependencies=[FOR_ADMINS])

_PIECES_AHEAD = 16
"""Of a body that may wait to be written: a piece is what a read of the socket gives."""

_OF_FORMS = ("", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded")
"""Types that a web page may send to any server without having asked it."""


class _GoneError(Exception):
    """Who was sending has gone."""


class _Pieces:
    """A body, from the event loop to the thread that writes it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_PIECES_AHEAD)
        self._is_whole = False
        self._nobody_reads = False

    async def put(self, piece: bytes) -> None:
        """Hand a piece over; waits where too many are ahead."""
        await self._room.acquire()
        if self._nobody_reads:
            self._room.release()
        else:
            self._pieces.put(piece)

    def end(self, *, whole: bool) -> None:
        """There is no more of it."""
        self._is_whole = whole
        self._pieces.put(None)

    def stop(self) -> None:
        """What comes now is for nobody."""
        self._nobody_reads = True
        self._room.release()

    def __iter__(self) -> Iterator[bytes]:
        """The pieces, in the thread; raises `_GoneError` where it isn't whole."""
        while (piece := self._pieces.get()) is not None:
            yield piece
            self._loop.call_soon_threadsafe(self._room.release)
        if not self._is_whole:
            raise _GoneError


@router.get("/api/blobs/{digest}")
async def find_blob(digest: str, request: Request) -> Response:
    """Whether a blob is here; asked by `HEAD`, for there is nothing to get."""
    store = served_store(request)
    if await asyncio.to_thread(store.blob, _checked(digest)) is None:
        raise HTTPException(404, f'blob "{digest}" not found')
    return Response(status_code=200)


@router.post("/api/blobs/{digest}")
async def send_blob(digest: str, request: Request) -> Response:
    """Send a blob: 201 where it is new, 200 where it is here already."""
    store = changeable_store(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    from_page = "origin" in request.headers or "sec-fetch-site" in request.headers
    if from_page and kind in _OF_FORMS:
        raise HTTPException(415, "Send a blob with Content-Type: application/octet-stream.")
    digest = _checked(digest)
    if await asyncio.to_thread(store.blob, digest) is not None:
        async for _ in request.stream():  # clients read no answer before they have sent all of it
            pass
        return Response(status_code=200)
    await _write(store, digest, request)
    return Response(status_code=201)


async def _write(store: Store, digest: str, request: Request) -> None:
    pieces = _Pieces()
    served: ServedStore = request.app.state.store
    writing = asyncio.ensure_future(
        served.uploads.run(lambda: store.add_blob(iter(pieces), digest=digest))
    )
    writing.add_done_callback(lambda _: pieces.stop())
    whole = False
    try:
        async for piece in request.stream():
            if piece:
                await pieces.put(piece)
        whole = True
    finally:
        pieces.end(whole=whole)
        if not whole:  # the thread ends by itself, and leaves nothing
            await asyncio.gather(writing, return_exceptions=True)
    try:
        await writing
    except WrongDigestError as error:
        raise HTTPException(400, f"digest mismatch, {error.reason}") from error


def _checked(digest: str) -> str:
    try:
        return parse_digest(digest)
    except ValueError as error:
        raise HTTPException(400, "invalid digest format") from error
