"""A batch, as it is kept on the disk."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from caudal.batches.usage import Usage

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]

ENDED: frozenset[Status] = frozenset(("failed", "completed", "expired", "cancelled"))

Form = Literal["openai", "anthropic"]


class Batch(msgspec.Struct, kw_only=True):
    """A batch.

    Attributes:
        id: What it is called.
        form: Whose API it was made with.
        tenant: Who made it; None where nobody is told apart.
        endpoint: The route that answers its lines.
        input_file_id: The file that it was made of; None where it brought its lines along.
        completion_window: How long it may take, in the words of whoever made it.
        output_seconds: How long its output is kept.
        created: When it was made, Unix time in seconds.
        expires: When it has taken too long.
        metadata: Its maker's.
        status: How far it is.
        ending: What it will be once its output is written, where it has come to that.
        at: When it came to each status.
        errors: Why it failed: see `Fault.described`.
        model: What all of its lines name; None where they name several.
        total: Its lines.
        completed: Those that were answered.
        failed: Those that have failed.
        usage: Tokens of those that were answered.
        output_file_id: What was answered, once it has ended.
        error_file_id: What was not.
    """

    id: str
    form: Form
    tenant: str | None
    endpoint: str
    input_file_id: str | None
    completion_window: str
    output_seconds: float | None
    expires: float
    metadata: dict[str, str] | None
    created: float = msgspec.field(default_factory=time.time)
    status: Status = "validating"
    ending: Literal["completed", "expired", "cancelled"] | None = None
    at: dict[Status, float] = {}
    errors: list[dict[str, Any]] = []
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.status in ENDED

    @property
    def unanswered(self) -> int:
        """Lines of which nothing has become."""
        return self.total - self.completed - self.failed

    def enter(self, status: Status) -> None:
        """Come to a status now."""
        self.status = status
        self.at[status] = time.time()

    def described(self) -> dict[str, Any]:
        """The batch as OpenAI's API gives it."""
        at: dict[str, int | None] = {
            f"{status}_at": int(self.at[status]) if status in self.at else None
            for status in (
                "in_progress",
                "finalizing",
                "completed",
                "failed",
                "expired",
                "cancelling",
                "cancelled",
            )
        }
        errors = {"object": "list", "data": self.errors} if self.errors else None
        shown = self.status in ENDED
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id if shown else None,
            "error_file_id": self.error_file_id if shown else None,
            "created_at": int(self.created),
            "expires_at": int(self.expires),
            **at,
            "request_counts": {
                "total": self.total,
                "completed": self.completed,
                "failed": self.failed,
            },
            "usage": self.usage.described(),
            "metadata": self.metadata,
        }
