"""A loaded model, and the leases that keep it loaded while requests run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from caudal.service.service import Service
from caudal.workers.launcher import RunningModel

LONGEST_BACK_OFF = 60.0
"""Seconds that nobody may try for after many failures in a row; and after which a model that runs
has proved that it does."""


class Lease:
    """Keeps a model loaded as long as somebody asks something of it.

    Args:
        stay: What is kept.
    """

    __slots__ = ("_released", "_stay")

    def __init__(self, stay: Stay) -> None:
        self._stay = stay
        self._released = False

    @property
    def service(self) -> Service:
        """The model's."""
        return self._stay.running.service

    def again(self) -> Lease:
        """Another one, for what goes on beside."""
        assert not self._released, "the model may be gone"
        return self._stay.lease()

    def release(self) -> None:
        """Nothing is asked of it any more. Safe to call twice."""
        if not self._released:
            self._released = True
            self._stay.end_lease()


class Stay:
    """A model from its being loaded until it ends.

    Args:
        running: What was loaded.
        now: The time.
        on_idle: Called when the last request on it has ended; it may be over by then.

    Attributes:
        running: What was loaded.
        since: When.
        leases: How many requests run.
        idle_since: When the last of them ended; of no account while one runs.
    """

    __slots__ = ("_on_idle", "idle_since", "leases", "running", "since")

    def __init__(self, running: RunningModel, now: float, on_idle: Callable[[], None]) -> None:
        self._on_idle = on_idle
        self.running = running
        self.since = self.idle_since = now
        self.leases = 0

    def lease(self) -> Lease:
        """Count a request in."""
        self.leases += 1
        return Lease(self)

    def end_lease(self) -> None:
        """Count a request out."""
        self.leases -= 1
        if not self.leases:
            self.idle_since = asyncio.get_running_loop().time()
            self._on_idle()

    def has_proved_itself(self, now: float) -> bool:
        """Whether it has run for so long that what went wrong before is of no account."""
        return now - self.since >= LONGEST_BACK_OFF
