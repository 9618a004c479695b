"""A model's service as if it were in another process: behind a socket, on an event loop of its own.

What passes the socket is what passes between processes; only the process is missing.
"""

from __future__ import annotations

import asyncio
import socket
import threading

from caudal.errors import WorkerEndedError
from caudal.service.model_service import ModelService
from caudal.workers.answering import CallServer, ServiceHost
from caudal.workers.connection import Connection
from caudal.workers.remote_service import RemoteService


class FarModel:
    """A model to be asked over a socket.

    Attributes:
        behind: Its service.
        connection: To it, once it is connected.
    """

    connection: Connection

    def __init__(self, behind: ModelService) -> None:
        self.behind = behind
        self._ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._answer()), daemon=True)
        self._thread.start()

    async def connect(self) -> RemoteService:
        """The service, for the running event loop. Call it once."""
        connection = self.connection = Connection()

        def fail(reason: str | None) -> None:
            connection.fail(WorkerEndedError("far", reason or "has gone"))

        connection.on_end = fail
        await connection.open(self._ours)
        return await RemoteService.connected(connection)

    def close(self) -> None:
        """End it; the service must have been shut down."""
        if self._ours.fileno() >= 0:
            self._ours.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _answer(self) -> None:
        ended = asyncio.Event()

        def on_end(error: Exception | None) -> None:
            assert error is None, f"what came in can't be read: {error!r}"
            ended.set()

        server = CallServer(on_end)
        ServiceHost(self.behind, server)
        await server.channel.open(self._theirs)
        await ended.wait()
        await server.end()
