"""Bars on a terminal for what takes long, each with its bytes and the time that is left."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column


def byte_bars(console: Console, *, show_rate: bool) -> Progress:
    """Bars of what is counted in bytes, over the whole width.

    Args:
        console: Where they are shown.
        show_rate: Show bytes a second, too.
    """
    fixed = Column(no_wrap=True)
    rate: list[ProgressColumn] = [TransferSpeedColumn(table_column=fixed)] if show_rate else []
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        BarColumn(bar_width=20),
        DownloadColumn(table_column=fixed),
        *rate,
        TimeRemainingColumn(compact=True, table_column=fixed),
        console=console,
        expand=True,
    )
