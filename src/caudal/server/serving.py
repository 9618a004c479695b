"""Running the server: listen at once, load the model beside it, answer, and leave in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from caudal.errors import CaudalError
from caudal.server.app import create_app
from caudal.server.served_model import ServedModel
from caudal.server.state import ModelSlot

KEEP_ALIVE_SECONDS = 120
"""Idle connections stay open longer than clients' pools keep them, so that none is closed under a
request that is just being sent."""

DRAIN_SECONDS = 10.0
"""How long running answers may go on after the first signal; the second ends them at once."""


class ListenError(CaudalError):
    """The server cannot listen where it was told to."""


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        ListenError: The port is taken, or the address is not one of this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = str(error)
        if error.errno == errno.EADDRINUSE:
            reason = "another program is using that port; choose one with --port"
        elif error.errno == errno.EACCES:
            reason = "ports below 1024 need special rights; choose another with --port"
        elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            reason = "this machine has no such address; choose one with --host"
        raise ListenError(f"cannot listen on {host}:{port}: {reason}") from error


def server_config(app: FastAPI) -> uvicorn.Config:
    """How uvicorn is to run the application."""
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


def serve(
    sock: socket.socket,
    load: Callable[[], ServedModel],
    *,
    api_key: str | None = None,
    strict_fields: bool = False,
    on_ready: Callable[[ServedModel], None],
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        sock: A listening socket, from `listen`.
        load: Loads the model and starts its engine; runs in a thread while `/health` says 503.
        api_key: See `create_app`.
        strict_fields: See `create_app`.
        on_ready: Called once requests can be answered.

    Raises:
        CaudalError: Loading failed.
    """
    slot = ModelSlot()
    config = server_config(create_app(slot, api_key=api_key, strict_fields=strict_fields))
    server = _Server(config, slot)

    async def load_model() -> None:
        try:
            model = await asyncio.to_thread(load)
        except BaseException:
            server.should_exit = True
            raise
        # What is there now stays: a full collection would look at all of it, and stop every stream
        # for some 50 ms.
        gc.collect()
        gc.freeze()
        slot.fill(model)
        if not server.should_exit:
            on_ready(model)

    async def run() -> None:
        loading = asyncio.ensure_future(load_model())
        try:
            await server.serve(sockets=[sock])
            await loading
        finally:
            if slot.ready:
                await slot.model.shutdown()

    # uvicorn handles the signals while it serves, and then raises them again for whoever handled
    # them before. Nobody needs to: a server that was told to stop and did has not failed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(run())


class _Server(uvicorn.Server):
    """Ends running answers through the engine, so that each gets its proper last event."""

    def __init__(self, config: uvicorn.Config, slot: ModelSlot) -> None:
        super().__init__(config)
        self._slot = slot
        self._hurry = asyncio.Event()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: take no more requests and drain. Second: end running answers now."""
        if self.should_exit:
            asyncio.get_running_loop().call_soon_threadsafe(self._hurry.set)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain; what still runs after `DRAIN_SECONDS` is ended by closing its engine."""

        async def end_answers() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), DRAIN_SECONDS)
            if self._slot.ready:
                await self._slot.model.shutdown()

        ending = asyncio.ensure_future(end_answers())
        await super().shutdown(sockets)
        ending.cancel()
