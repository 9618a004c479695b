"""The server's way from taking requests to none.

1. *Notice*, where one is to be given: `/ready` says 503, so that load balancers send no more; what
   still comes is answered. They look every few seconds, and an address that is gone from
   Kubernetes' endpoints goes on to be used as long by proxies that haven't heard of it.
2. *Refusing*: new work is answered 503, to be taken elsewhere, on a connection that closes. The
   server listens on, since a connection refused looks like a crash; what runs goes on.
3. When nothing runs any more, or time is up, it stops listening, and ends.
"""

from __future__ import annotations

import asyncio


class Draining:
    """How far the server is on it. For one event loop.

    Attributes:
        begun: Whether it has been told to stop.
        refuses: Whether new work is refused.
    """

    def __init__(self) -> None:
        self.begun = False
        self.refuses = False
        self._running = 0
        self._idle = asyncio.Event()

    def begin(self) -> None:
        """Say from now on that the server isn't ready. May be called by a signal's handler."""
        self.begun = True

    def refuse(self) -> None:
        """Take no more work."""
        self.begun = self.refuses = True
        self._look()

    def enter(self) -> None:
        """A request is taken, and will be waited for."""
        self._running += 1

    def leave(self) -> None:
        """It has been answered."""
        self._running -= 1
        self._look()

    async def wait_until_idle(self) -> None:
        """Until all have been answered that were taken."""
        await self._idle.wait()

    def _look(self) -> None:
        if self.refuses and not self._running:
            self._idle.set()
