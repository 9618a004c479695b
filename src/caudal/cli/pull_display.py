"""Showing a pull: bars on a terminal, a few plain lines in a log. Everything goes to stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column

from caudal.cli.formatting import format_bytes
from caudal.store import PullProgress, PullStage, Store, StoredModel
from caudal.store.known_models import find_known_model
from caudal.store.progress import ProgressCallback

_COUNTED = (PullStage.DOWNLOADING, PullStage.VERIFYING, PullStage.UNPACKING)


def pull_with_display(store: Store, model: str) -> StoredModel:
    """Pull a model and show how it goes, and the terms it comes under.

    Args:
        store: Where to.
        model: What, as `Store.pull` takes it.

    Raises:
        ModelNotFoundError: There is no such name or file.
        StoreError: It couldn't be fetched, verified or written.
    """
    known = find_known_model(model.lower())
    console = Console(stderr=True, highlight=False)
    if known is not None and known.licence.notice:
        console.print(known.licence.notice, markup=False, soft_wrap=True)
    with progress_display(console) as progress:
        return store.pull(model, progress)


def ensure_with_display(store: Store, model: str) -> StoredModel:
    """The model if it is on this machine; otherwise pull it, visibly.

    Raises:
        ModelNotFoundError: There is no such name or file.
        StoreError: It couldn't be fetched, verified or written; or it is here, but damaged.
    """
    found = store.find(model)
    return found if found is not None else pull_with_display(store, model)


@contextmanager
def progress_display(console: Console) -> Iterator[ProgressCallback]:
    """Shows what a store reports: bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    fixed = Column(no_wrap=True)
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        BarColumn(bar_width=20),
        DownloadColumn(table_column=fixed),
        TransferSpeedColumn(table_column=fixed),
        TimeRemainingColumn(compact=True, table_column=fixed),
    )
    with Progress(*columns, console=console, expand=True) as progress:
        yield _Bars(progress)


class _Lines:
    """One line for every new step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[PullStage, str] | None = None

    def __call__(self, event: PullProgress) -> None:
        step = (event.stage, event.item)
        if step == self._last and event.stage is not PullStage.RETRYING:
            return
        self._last = step
        size = f" ({format_bytes(event.total)})" if event.total is not None else ""
        self._console.print(_sentence(event) + size, markup=False, soft_wrap=True)


class _Bars:
    """A bar for everything that is counted in bytes; finished downloads stay on the screen."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._current: tuple[PullStage, str] | None = None
        self._task: TaskID | None = None

    def __call__(self, event: PullProgress) -> None:
        if event.stage not in _COUNTED:
            if event.stage is not PullStage.RESOLVING:
                self._progress.console.print(_sentence(event), markup=False)
            return
        step = (event.stage, event.item)
        if step != self._current or self._task is None:
            self._begin(step, event)
        else:
            self._progress.update(self._task, completed=event.completed, total=event.total)

    def _begin(self, step: tuple[PullStage, str], event: PullProgress) -> None:
        before, self._current = self._current, step
        if self._task is not None and before is not None and before[0] is not PullStage.DOWNLOADING:
            self._progress.remove_task(self._task)
        # Of a model in several packages, names differ at the end, which must stay visible.
        downloading = event.stage is PullStage.DOWNLOADING
        self._task = self._progress.add_task(
            _short(event.item) if downloading else _sentence(event),
            total=event.total,
            completed=event.completed,
        )


def _sentence(event: PullProgress) -> str:
    if event.stage is PullStage.WAITING:
        return str(event.stage)
    detail = f": {event.detail}" if event.detail else ""
    return f"{event.stage} {_short(event.item)}{detail}"


def _short(item: str) -> str:
    """A file's name without the part that is the same for every wheel of a model."""
    return item.removesuffix("-py3-none-any.whl")
