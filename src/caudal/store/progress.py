"""How a pull tells what it is doing, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class PullStage(StrEnum):
    """What a pull or a push is doing, in words that an item can follow."""

    WAITING = "waiting for another process that is changing the store"
    RESOLVING = "looking up"
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    VERIFYING = "verifying"
    RETRYING = "retrying"
    WRITING = "writing the manifest of"
    UPLOADING = "uploading"
    ANNOUNCING = "pushing the manifest of"


@dataclass(frozen=True, slots=True)
class PullProgress:
    """One report.

    Attributes:
        stage: What is happening.
        item: What it happens to: a package or a file.
        completed: Bytes done, where bytes are counted.
        total: Bytes in all, where known.
        detail: A reason, e.g. why a download is tried again.
        digest: The blob that it happens to, `sha256:HEX`; empty where it isn't one.
    """

    stage: PullStage
    item: str
    completed: int = 0
    total: int | None = None
    detail: str = ""
    digest: str = ""

    @property
    def status(self) -> str:
        """The same in the words of Ollama's API (github.com/ollama/ollama: server/images.go)."""
        what = self.digest.partition(":")[2][:12] or self.item
        match self.stage:
            case PullStage.RESOLVING:
                return "pulling manifest"
            case PullStage.VERIFYING:
                return "verifying sha256 digest"
            case PullStage.WRITING:
                return "writing manifest"
            case PullStage.UPLOADING:
                return f"pushing {what}"
            case PullStage.ANNOUNCING:
                return "pushing manifest"
            case _:
                return f"pulling {what}"


ProgressCallback = Callable[[PullProgress], None]
"""Told on the thread that pulls or pushes, often enough to end it by raising something."""


def ignore_progress(_: PullProgress) -> None:
    """The callback of whoever doesn't want to know."""
