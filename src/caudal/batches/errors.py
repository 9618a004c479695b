"""What can't be done with files and batches."""

from __future__ import annotations

from pathlib import Path

from caudal.errors import CaudalError, LimitError


class UnknownFileError(CaudalError):
    """There is no such file: there never was, it was deleted, or its time was over."""

    def __init__(self, identity: str) -> None:
        super().__init__(f"No such File object: {identity:.80}")


class UnknownBatchError(CaudalError):
    """There is no such batch."""

    def __init__(self, identity: str) -> None:
        super().__init__(f"No batch found with id '{identity:.80}'.")


class BatchStateError(CaudalError):
    """What is asked of a batch comes too late, or too early."""


class NoRoomError(CaudalError):
    """A file has no room: on the disk, or among the files that the server keeps.

    Args:
        message: What there is no room in.
        limit: The limit's name, where it is one.
    """

    def __init__(self, message: str, limit: str | None = None) -> None:
        self.limit = limit
        super().__init__(message)


class TooManyBatchesError(LimitError):
    """A tenant has too many batches that have not ended."""

    def __init__(self, running: int) -> None:
        super().__init__(
            "max_batches",
            f"You have {running} batches that have not ended. Wait for one, or cancel it.",
            retry_after=60,
        )


class BatchesElsewhereError(CaudalError):
    """Another process has the files and batches of the directory."""

    def __init__(self, home: Path) -> None:
        super().__init__(
            f"Another server has the files and batches in {home}. Stop it, or give this one a "
            "CAUDAL_HOME of its own."
        )


class InputChangedError(CaudalError):
    """The lines of a file are not where they were."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} has changed since it was read: its lines may be others now. The same command "
            "begins anew with it; with the old lines, it goes on from where it stopped."
        )


class JobRunsError(CaudalError):
    """Another process is at the same job."""

    def __init__(self, output: Path) -> None:
        super().__init__(f"another process is writing {output}")
