"""One request and its answer, as uvicorn has them."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Cycle(RequestResponseCycle):
    """An answer that may be given up: the server stops, or a key is revoked whose client doesn't
    read. That is no failure of the application, and isn't logged as one.
    """

    async def run_asgi(self, app: Any) -> None:
        """Have the application answer."""

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:
                if self.response_started and not self.response_complete:
                    self.disconnected = True
                    self.transport.close()

        await super().run_asgi(run)  # type: ignore[arg-type]  # uvicorn's types, and Starlette's
