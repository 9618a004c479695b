"""Turns on the processors, which the workers of one server take by means of a file in memory.

How it is decided whose turn it is, and what becomes of those who die or stop amid theirs, is
described in csrc/runtime/turns.h. There are none but on Linux: elsewhere the system has to share
the processors out.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from caudal import _native
from caudal.engine.turns import Turns
from caudal.machine import usable_processors

logger = logging.getLogger("caudal.worker")

_SIZE = 4096
"""Bytes of the file, all zeros at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTimes:
    """How long what may take, in seconds.

    Attributes:
        poll: Until one that waits looks whether the others are alive.
        grace: For one that is behind to come back from one iteration for the next.
        stuck: For a turn to go on without using the processors, say because the process was
            stopped, before others go on; or not to be taken by the one whose it is.
        longest: For a turn that others wait for. It is only long prompts of large models that
            take longer; after that the system has to share the processors out.
    """

    poll: float = 0.005
    grace: float = 0.003
    stuck: float = 0.25
    longest: float = 10.0


TIMES = TurnTimes()


class TurnFile:
    """The file by which turns are taken; whoever is to take some inherits its descriptor."""

    def __init__(self) -> None:
        self.descriptor: int = os.memfd_create("caudal-turns", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, _SIZE)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def make_turn_file() -> TurnFile | None:
    """A file for turns; None where there are no turns."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        return TurnFile()
    except OSError as error:
        logger.warning("Models won't take turns on the processors: %s", error)
        return None


def join_turns(descriptor: int, threads: int, times: TurnTimes = TIMES) -> Turns | None:
    """Become one of those that take turns.

    Args:
        descriptor: Of the file; not needed afterwards.
        threads: Threads that compute in each turn.
        times: See there.

    Returns:
        None where that can't be, or where too many do already.
    """
    try:
        return _native.Turns(
            descriptor,
            threads,
            usable_processors(),
            times.poll,
            times.grace,
            times.stuck,
            times.longest,
        )
    except (OSError, RuntimeError) as error:
        logger.warning("This model won't take turns on the processors: %s", error)
        return None
