"""Answers to HTTP/1.0."""

from __future__ import annotations

from typing import Any

from caudal.server.cycle import Cycle


class UnframedCycle(Cycle):
    """An answer to HTTP/1.0, which knows no chunks: a body without a length ends where the
    connection does.
    """

    _unframed = False

    async def send(self, message: Any) -> None:
        """Send a part of the answer, as it is."""
        if not self.response_started:
            headers = message.get("headers", ())
            if not any(name.lower() == b"content-length" for name, _ in headers):
                self._unframed = self.scope["method"] != "HEAD"
                # uvicorn frames no body of an answer to HEAD, and writes none.
                self.scope = {**self.scope, "method": "HEAD"}
        elif self._unframed and not self.response_complete:
            if self.flow.write_paused and not self.disconnected:
                await self.flow.drain()
            if not self.disconnected:
                self.transport.write(message.get("body", b""))
        await super().send(message)
