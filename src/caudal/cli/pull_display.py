"""Showing a pull or a push: bars on a terminal, plain lines in a log. All of it goes to stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

from caudal.cli.bars import byte_bars
from caudal.cli.formatting import format_bytes
from caudal.store import PullProgress, PullStage, Store, StoredModel
from caudal.store.names import FileReference, parse_model_name
from caudal.store.progress import ProgressCallback
from caudal.store.pullable import known_model

_TRANSFERS = (PullStage.DOWNLOADING, PullStage.UPLOADING)
_PASSING = (PullStage.VERIFYING, PullStage.UNPACKING)
_SMALLEST_BAR = 100_000
"""Bytes of what is worth a line of a terminal."""
_LINE_SECONDS = 10.0

_SHOWN_BYTES = 1 << 30
"""What is read in less than a second or so is read without a word."""


def pull_with_display(store: Store, model: str, *, insecure: bool = False) -> StoredModel:
    """Pull a model and show how it goes, and the terms it comes under.

    Args:
        store: Where to.
        model: What, as `Store.pull` takes it.
        insecure: Whether a registry elsewhere may be asked without encryption.

    Raises:
        ModelNotFoundError: There is no such name or file.
        StoreError: It couldn't be fetched, verified or written.
    """
    reference = parse_model_name(model)
    known = None if isinstance(reference, FileReference) else known_model(reference)
    console = Console(stderr=True, highlight=False)
    if known is not None and known.licence.notice:
        console.print(known.licence.notice, markup=False, soft_wrap=True)
    with progress_display(console) as progress:
        return store.pull(model, progress, insecure=insecure)


def ensure_with_display(store: Store, model: str) -> StoredModel:
    """The model if it is on this machine; otherwise pull it, visibly.

    Raises:
        ModelNotFoundError: There is no such name or file.
        StoreError: It couldn't be fetched, verified or written; or it is here, but damaged.
    """
    with progress_display(Console(stderr=True, highlight=False)) as progress:
        # Files that were never checked are read, such as those of Ollama's.
        found = store.find(model, lambda event: progress(event) if _takes_long(event) else None)
    return found if found is not None else pull_with_display(store, model)


def _takes_long(event: PullProgress) -> bool:
    return event.total is not None and event.total > _SHOWN_BYTES


@contextmanager
def progress_display(console: Console) -> Iterator[ProgressCallback]:
    """Shows what a store reports: bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with byte_bars(console, show_rate=True) as progress:
        yield _Bars(progress)


class _Lines:
    """One line for every new step, and now and then how far the long ones are."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._seen: set[tuple[PullStage, str, str]] = set()
        self._began: dict[str, tuple[float, int]] = {}
        self._told: dict[str, float] = {}

    def __call__(self, event: PullProgress) -> None:
        if event.stage in _TRANSFERS:
            self._transfer(event)
        elif (step := (event.stage, event.item, event.detail)) not in self._seen:
            self._seen.add(step)
            size = "" if event.total is None or event.detail else f" ({format_bytes(event.total)})"
            self._print(_sentence(event) + size)

    def _transfer(self, event: PullProgress) -> None:
        now = self._clock()
        is_done = event.completed == event.total
        if event.item not in self._began:
            self._began[event.item] = now, event.completed
            self._told[event.item] = now
            if not is_done:
                size = "" if event.total is None else f" ({format_bytes(event.total)})"
                there = f", {format_bytes(event.completed)} are there" if event.completed else ""
                self._print(_sentence(event) + size + there)
            return
        began, completed = self._began[event.item]
        rate = (event.completed - completed) / (now - began) if now > began else 0.0
        if is_done or rate <= 0 or now - self._told[event.item] < _LINE_SECONDS:
            return
        self._told[event.item] = now
        done = format_bytes(event.completed)
        if event.total is None:
            self._print(f"{_sentence(event)}: {done}, {format_bytes(round(rate))}/s")
            return
        left = (event.total - event.completed) / rate
        self._print(
            f"{_sentence(event)}: {done} of {format_bytes(event.total)}, "
            f"{format_bytes(round(rate))}/s, {left:.0f} s left"
        )

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


class _Bars:
    """A bar for everything that is counted in bytes; finished transfers stay on the screen."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __call__(self, event: PullProgress) -> None:
        is_transfer = event.stage in _TRANSFERS
        # Who waits for another's download sees how far that is.
        is_awaited = event.stage is PullStage.WAITING and event.total is not None
        if not (is_transfer or is_awaited or event.stage in _PASSING):
            if event.stage not in (PullStage.RESOLVING, PullStage.WRITING):
                self._progress.console.print(_sentence(event), markup=False)
            return
        if event.total is not None and event.total < _SMALLEST_BAR:
            return
        is_passing = event.stage in _PASSING
        key = (event.item, event.stage if is_passing else "")
        task = self._tasks.get(key)
        if task is None:
            self._drop_passing(event.item)
            # Of a model in several packages, names differ at the end, which must stay visible.
            description = _sentence(event) if is_passing else _short(event.item)
            self._tasks[key] = self._progress.add_task(
                description, total=event.total, completed=event.completed
            )
        else:
            self._progress.update(task, completed=event.completed, total=event.total)
        if is_passing and event.completed == event.total:
            self._drop_passing(event.item)

    def _drop_passing(self, item: str) -> None:
        for key in [key for key in self._tasks if key[0] == item and key[1]]:
            self._progress.remove_task(self._tasks.pop(key))


def _sentence(event: PullProgress) -> str:
    if event.stage is PullStage.WAITING:
        return str(event.stage)
    detail = f": {event.detail}" if event.detail else ""
    return f"{event.stage} {_short(event.item)}{detail}"


def _short(item: str) -> str:
    """A file's name without the part that is the same for every wheel of a model."""
    return item.removesuffix("-py3-none-any.whl")
