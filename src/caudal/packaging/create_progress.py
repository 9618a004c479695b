"""How the making of a model tells what it is doing, in Ollama's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_SHOWN_BYTES = 8 << 20
_SHOWN_STEPS = 200


@dataclass(frozen=True, slots=True)
class CreateProgress:
    """One report.

    Attributes:
        status: What is happening.
        digest: What is counted, where something is: what a bar is for.
        completed: Bytes of it that are done.
        total: Bytes of it in all.
    """

    status: str
    digest: str = ""
    completed: int = 0
    total: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As Ollama's routes stream it."""
        if not self.digest:
            return {"status": self.status}
        return {
            "status": self.status,
            "digest": self.digest,
            "total": self.total or 0,
            "completed": self.completed,
        }


CreateCallback = Callable[[CreateProgress], None]


def ignore_progress(_: CreateProgress) -> None:
    """The callback of whoever doesn't want to know."""


class Count:
    """Reports of something that is counted, not more often than anybody looks.

    Args:
        progress: Told of them.
        status: What is happening.
        number: Which of the things that are counted it is; each has a bar.
        total: Bytes in all.
    """

    def __init__(self, progress: CreateCallback, status: str, number: int, total: int) -> None:
        self._progress = progress
        self._status = status
        self._digest = f"{number:019d}"  # as Ollama has it, whose clients show a bar for each
        self._total = total
        self._next = 0

    def __call__(self, completed: int) -> None:
        """So many bytes are done."""
        if completed >= self._next or completed == self._total:
            self._next = completed + max(_SHOWN_BYTES, self._total // _SHOWN_STEPS)
            self._progress(CreateProgress(self._status, self._digest, completed, self._total))
