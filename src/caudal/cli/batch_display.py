"""How far a batch is: a bar on a terminal, lines in a log. All of it goes to stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from caudal.batches.answers import Outcome
from caudal.batches.journal import Journal

_LINE_SECONDS = 10.0


@contextmanager
def batch_display(journal: Journal, total: int) -> Iterator[Callable[[Outcome], None]]:
    """Shows how far a batch is, and is told of each line.

    Args:
        journal: What is done.
        total: How many lines there are.
    """
    console = Console(stderr=True, highlight=False)
    rate = _Rate(journal)
    if console.is_terminal:
        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
        ) as progress:
            task = progress.add_task(rate.words(), total=total, completed=rate.done)

            def show(outcome: Outcome) -> None:
                rate.add(outcome)
                progress.update(task, completed=rate.done, description=rate.words())

            yield show
        return
    said = time.monotonic()

    def say(outcome: Outcome) -> None:
        nonlocal said
        rate.add(outcome)
        if time.monotonic() - said >= _LINE_SECONDS:
            said = time.monotonic()
            left = rate.seconds_left(total)
            console.print(
                f"{rate.done} of {total} lines, {rate.words()}, {left:.0f} s left", soft_wrap=True
            )

    yield say


class _Rate:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._before = self.done
        self._tokens = 0
        self._began = time.monotonic()

    @property
    def done(self) -> int:
        return self._journal.completed + self._journal.failed

    def add(self, outcome: Outcome) -> None:
        self._tokens += outcome.usage.output_tokens

    def words(self) -> str:
        """What there is a second, and how many lines have failed."""
        seconds = max(time.monotonic() - self._began, 1e-3)
        lines = (self.done - self._before) / seconds
        text = f"{lines:.1f} lines/s"
        if self._tokens:
            text += f", {self._tokens / seconds:.0f} tokens/s"
        return f"{text}, {self._journal.failed} failed" if self._journal.failed else text

    def seconds_left(self, total: int) -> float:
        """At the rate so far."""
        seconds = time.monotonic() - self._began
        return (total - self.done) * seconds / max(self.done - self._before, 1)
