"""A server in processes of its own, and what they take."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.processes import TEMPLATE_PROCESS, started_by

START_SECONDS = 120.0
PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Footprint:
    """What the server and its workers have.

    Attributes:
        memory: Bytes of resident memory.
        files: Open files.
        threads: Threads.
    """

    memory: int
    files: int
    threads: int


class ServedProcess:
    """`caudal serve`, started.

    Args:
        arguments: The command's.
        environment: Added to this process's.
        log: Where its output goes.
    """

    def __init__(self, arguments: Sequence[str], environment: dict[str, str], log: Path) -> None:
        command = [sys.executable, "-c", "from caudal.cli import main; main()", "serve"]
        self.process = subprocess.Popen(
            [*command, *arguments],
            env=os.environ | environment | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._log = log
        addresses: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(addresses,), daemon=True).start()
        address = addresses.get(timeout=START_SECONDS)
        if address is None:
            raise RuntimeError(f"the server did not start:\n{log.read_text()}")
        self.url = address

    def _read(self, addresses: queue.SimpleQueue[str | None]) -> None:
        """Keep what it says, and find its address in that."""
        assert self.process.stdout is not None
        with self._log.open("w") as log:
            for line in self.process.stdout:
                log.write(line)
                log.flush()
                if match := re.match(r"\s*address\s+(https?://\S+)/v1", line):
                    addresses.put(match[1])
        addresses.put(None)

    def processes(self) -> list[int]:
        """The server's process, and all that it has started."""
        found = [self.process.pid]
        for process in found:
            found += started_by(process)
        return found

    def footprint(self) -> Footprint:
        """What all of them have now.

        Memory is without that of processes for templates: they come as they are needed, up to a
        number, and are replaced when they have grown, which isn't what is to be found out.
        """
        memory = files = threads = 0
        for process in self.processes():
            folder = Path("/proc") / str(process)
            with contextlib.suppress(OSError):
                if TEMPLATE_PROCESS not in (folder / "cmdline").read_bytes():
                    memory += int((folder / "statm").read_text().split()[1]) * PAGE
                files += sum(1 for _ in (folder / "fd").iterdir())
                threads += sum(1 for _ in (folder / "task").iterdir())
        return Footprint(memory, files, threads)

    def tell(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it, whatever it does."""
        for process in reversed(self.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def served(
    arguments: Sequence[str], environment: dict[str, str], log: Path
) -> Iterator[ServedProcess]:
    """A server, which has gone when this ends."""
    process = ServedProcess(arguments, environment, log)
    try:
        yield process
    finally:
        process.kill()
