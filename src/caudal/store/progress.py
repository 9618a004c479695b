"""How a pull tells what it is doing, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class PullStage(StrEnum):
    """What a pull is doing, in words that an item can follow."""

    WAITING = "waiting for another process that is changing the store"
    RESOLVING = "looking up"
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    VERIFYING = "verifying"
    RETRYING = "retrying"


@dataclass(frozen=True, slots=True)
class PullProgress:
    """One report.

    Attributes:
        stage: What is happening.
        item: What it happens to: a package or a file.
        completed: Bytes done, where bytes are counted.
        total: Bytes in all, where known.
        detail: A reason, e.g. why a download is tried again.
    """

    stage: PullStage
    item: str
    completed: int = 0
    total: int | None = None
    detail: str = ""


ProgressCallback = Callable[[PullProgress], None]


def ignore_progress(_: PullProgress) -> None:
    """The callback of whoever doesn't want to know."""
