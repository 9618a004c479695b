"""A server that answers every request with the same events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from caudal.server.serving import listen


class Peer:
    """Answers with the same bytes, in groups of a given size, after some seconds."""

    def __init__(self, script: bytes, together: int, seconds: float, owner: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.most_at_once = 0
        self.metrics = ""
        self._now = 0
        self._script = script
        self._barrier = asyncio.Barrier(together)
        self._seconds = seconds
        self._owner = owner

    async def answer(self, request: Request) -> StreamingResponse:
        self.raw.append(await request.body())
        self.bodies.append(await request.json())

        async def stream() -> AsyncIterator[bytes]:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            await self._barrier.wait()
            await asyncio.sleep(self._seconds)
            self._now -= 1
            yield self._script

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def models(self, request: Request) -> JSONResponse:
        embeds = {"id": "embedder", "owned_by": self._owner, "capabilities": ["embed"]}
        return JSONResponse({"data": [embeds, {"id": "fake", "owned_by": self._owner}]})

    async def measured(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(self.metrics)


@contextlib.contextmanager
def scripted_peer(
    script: bytes, together: int = 1, *, seconds: float = 0.0, owner: str = "vllm"
) -> Iterator[tuple[Peer, str]]:
    peer = Peer(script, together, seconds, owner)
    routes = [
        Route("/v1/completions", peer.answer, methods=["POST"]),
        Route("/v1/chat/completions", peer.answer, methods=["POST"]),
        Route("/v1/models", peer.models),
        Route("/metrics", peer.measured),
    ]
    sock = listen("127.0.0.1", 0)
    uvicorn_server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_config=None))
    thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield peer, f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        uvicorn_server.should_exit = True
        thread.join()
