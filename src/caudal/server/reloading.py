"""What the server reads anew when it is told to: its configuration, its keys, its certificates.

SIGHUP tells it to. What can't be read, or makes no sense, changes nothing, and the log says why.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable, Callable

from caudal.errors import CaudalError
from caudal.server.service_manager import notify_ready, notify_reloading

logger = logging.getLogger("caudal.server")

Reload = Callable[[], Awaitable[None] | None]
"""Reads something anew; raises `CaudalError` where it can't, and has changed nothing then."""


class Reloader:
    """All that can be read anew, in the order in which it was added."""

    def __init__(self) -> None:
        self._reloads: list[tuple[str, Reload]] = []
        self._asked = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._reloads)

    def add(self, what: str, reload: Reload) -> None:
        """Have something be read anew, too.

        Args:
            what: Its name, for the log: `certificates`, `keys`.
            reload: Reads it.
        """
        self._reloads.append((what, reload))

    async def reload(self) -> None:
        """Read everything anew, one thing after another; none of them keeps another from it."""
        for what, reload in list(self._reloads):
            try:
                done = reload()
                if inspect.isawaitable(done):
                    await done
            except CaudalError as error:
                logger.error("reload: %s: unchanged, since it can't be used: %s", what, error)
            except Exception:
                logger.exception("reload: %s: unchanged, since it failed", what)
            else:
                logger.info("reload: %s: read anew", what)

    def ask(self) -> None:
        """Have `run` read everything anew; it does that once for all who ask before it begins."""
        self._asked.set()

    async def run(self) -> None:
        """Read everything anew whenever somebody asks, until it is cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            notify_reloading()
            await self.reload()
            notify_ready()


class Terminal:
    """The terminal that the process was started from, if it was."""

    def __init__(self) -> None:
        self._was_there = _is_there()

    @property
    def closed(self) -> bool:
        """Whether there was one, which isn't there any more."""
        return self._was_there and not _is_there()


def _is_there() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
