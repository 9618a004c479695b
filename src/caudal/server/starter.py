"""Starts requests, a few in each turn of the event loop.

A thousand that come at once would otherwise all be begun before anything else gets its turn, which
takes a second: longer than who asks `/health` waits before the server is taken for hung. So the
loop looks after each few whether anything else has come, and who only asks whether the server is
there doesn't queue. Whose client has gone before their turn aren't begun at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from caudal.server.open_paths import OPEN_PATHS
from caudal.server.paths import canonical_path

AT_ONCE = 2
"""Requests that are begun in one turn of the loop, which takes some 20 µs; each takes up to a
millisecond until it first waits."""


class Starter:
    """One for all connections of an event loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[RequestResponseCycle, Callable[[], None]]] = deque()
        self._left = AT_ONCE
        self._turns = False

    def start(self, cycle: RequestResponseCycle, begin: Callable[[], None]) -> None:
        """Begin a request, now where there is room in this turn, or in a later one.

        Args:
            cycle: The request and its answer.
            begin: Begins it; not called where its client has gone before.
        """
        if canonical_path(cycle.scope["path"]) in OPEN_PATHS:  # whether the server is there
            begin()
        elif self._left and not self._waiting:
            self._left -= 1
            begin()
            self._take_turns()
        else:
            self._waiting.append((cycle, begin))

    def _take_turns(self) -> None:
        if not self._turns:
            self._turns = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._left = AT_ONCE
        self._turns = False
        while self._waiting and self._left:
            cycle, begin = self._waiting.popleft()
            if not cycle.disconnected:
                self._left -= 1
                begin()
        if self._left < AT_ONCE:
            self._take_turns()
