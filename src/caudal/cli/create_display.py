"""Showing how a model is made: bars on a terminal, a few plain lines in a log, all to stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

from caudal.cli.bars import byte_bars
from caudal.packaging.create_progress import CreateCallback, CreateProgress


@contextmanager
def create_display() -> Iterator[CreateCallback]:
    """Shows what is reported of the making of a model."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _Lines(console)
        return
    with byte_bars(console, show_rate=False) as progress:
        yield _Bars(progress)


class _Lines:
    """One line for every new step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: str | None = None

    def __call__(self, event: CreateProgress) -> None:
        if event.status != self._last:
            self._last = event.status
            self._console.print(event.status, markup=False, soft_wrap=True)


class _Bars:
    """A bar for everything that is counted in bytes, and a line for the rest."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, event: CreateProgress) -> None:
        if event.total is None:
            self._progress.console.print(event.status, markup=False, soft_wrap=True)
            return
        task = self._tasks.get(event.status)
        if task is None:
            task = self._progress.add_task(event.status, total=event.total)
            self._tasks[event.status] = task
        self._progress.update(task, completed=event.completed, total=event.total)
