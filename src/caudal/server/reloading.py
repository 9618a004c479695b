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
    """All that can be read anew. Nothing waits for another: a configuration may take as long as a
    model that it has be fetched.
    """

    def __init__(self) -> None:
        self._subjects: list[_Subject] = []

    def __bool__(self) -> bool:
        return bool(self._subjects)

    def add(self, what: str, reload: Reload) -> None:
        """Have something be read anew, too; before `run`.

        Args:
            what: Its name, for the log: `certificates`, `keys`.
            reload: Reads it.
        """
        self._subjects.append(_Subject(what, reload))

    def ask(self) -> None:
        """Have `run` read everything anew; it does that once for all who ask before it begins."""
        notify_reloading()
        for each in self._subjects:
            each.asked.set()

    async def run(self) -> None:
        """Read everything anew whenever somebody asks, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._subjects:
                group.create_task(self._heed(each))

    async def _heed(self, subject: _Subject) -> None:
        while True:
            await subject.asked.wait()
            subject.asked.clear()
            subject.busy = True
            await subject.reload()
            subject.busy = False
            if not any(each.busy or each.asked.is_set() for each in self._subjects):
                notify_ready()


class _Subject:
    """Something that can be read anew.

    Attributes:
        asked: Set while it is to be.
        busy: Whether it is being read.
    """

    def __init__(self, what: str, reload: Reload) -> None:
        self.asked = asyncio.Event()
        self.busy = False
        self._what = what
        self._reload = reload

    async def reload(self) -> None:
        """Read it anew, and log what came of that."""
        try:
            done = self._reload()
            if inspect.isawaitable(done):
                await done
        except CaudalError as error:
            logger.error("reload: %s: unchanged, since it can't be used: %s", self._what, error)
        except Exception:
            logger.exception("reload: %s: unchanged, since it failed", self._what)
        else:
            logger.info("reload: %s: read anew", self._what)


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
