"""How the making of a model tells what it is doing, in Ollama's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
