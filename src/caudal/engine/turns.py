"""Whose turn it is to compute, where several engines share the processors."""

from __future__ import annotations

from typing import Protocol


class Turns(Protocol):
    """Turns that engines take one after the other, each for an iteration.

    Called by one engine's thread. Which tokens come out doesn't depend on whose turn it is.
    """

    def take(self) -> None:
        """Wait for a turn and begin it."""

    def give_back(self) -> bool:
        """End a turn.

        Returns:
            Whether another begins its own right now.
        """

    def leave(self) -> None:
        """Say that nothing waits to be computed, so that nobody holds a turn open for it."""


class NoTurns:
    """Turns (see above) of an engine that has the processors for itself."""

    def take(self) -> None:
        """See `Turns`."""

    def give_back(self) -> bool:
        """See `Turns`."""
        return False

    def leave(self) -> None:
        """See `Turns`."""
