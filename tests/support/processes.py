"""Which processes there are."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

TEMPLATE_PROCESS = b"caudal.formats.template_process"
"""In the command of what runs chat templates."""


def started_by(parent: int, program: bytes = b"") -> list[int]:
    """The processes that one has started, of those with a program's name in their command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if _stat(folder)[1] == str(parent) and program in _command(folder):
                found.append(int(folder.name))
    return sorted(found)


def _stat(folder: Path) -> list[str]:
    """What a process's `stat` says behind its name: the state, the parent, and so on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _command(folder: Path) -> bytes:
    """What a process runs: one that is just beginning to has nothing there for a moment."""
    while not (command := (folder / "cmdline").read_bytes()) and _stat(folder)[0] != "Z":
        time.sleep(0.001)
    return command


def children(parent: int) -> list[int]:
    """The processes that run chat templates for a process."""
    return started_by(parent, TEMPLATE_PROCESS)


def wait_until_gone(processes: Sequence[int]) -> None:
    """Until none of the processes is there, nor what is left of it for its parent."""
    deadline = time.monotonic() + 10
    for process in processes:
        while _exists(process):
            assert time.monotonic() < deadline, f"process {process} is still there"
            time.sleep(0.01)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
