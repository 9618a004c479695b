"""A user's home in which client programs run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from support.clients.programs import Programs


@dataclass(frozen=True)
class Finished:
    """A program that ended.

    Attributes:
        code: Its exit status.
        output: What it printed.
        errors: What it printed to standard error.
    """

    code: int
    output: str
    errors: str

    def __str__(self) -> str:
        return f"exit status {self.code}\n--- output\n{self.output}\n--- errors\n{self.errors}"


@dataclass(frozen=True)
class Home:
    """A user's home and a project folder, both new.

    Attributes:
        home: What `HOME` is; configuration goes there.
        project: Where programs run.
        programs: What is installed.
    """

    home: Path
    project: Path
    programs: Programs

    @classmethod
    def create(cls, folder: Path, programs: Programs) -> Self:
        """Make both in a folder."""
        home, project = folder / "home", folder / "project"
        home.mkdir()
        project.mkdir()
        return cls(home, project, programs)

    def write(self, name: str, text: str) -> None:
        """Write a file into the home."""
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(
        self,
        command: Sequence[object],
        environment: Mapping[str, str] | None = None,
        *,
        stdin: str = "",
        timeout: float = 120,
    ) -> Finished:
        """Run a program to its end, with nothing of the developer's own environment.

        Raises:
            subprocess.TimeoutExpired: It was killed, with everything that it had started; holds
                what it had printed.
        """
        with self.started(command, environment) as process:
            try:
                output, errors = process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired as late:
                _kill_group(process.pid)
                output, errors = process.communicate()
                raise subprocess.TimeoutExpired(command, timeout, output, errors) from late
        return Finished(process.returncode, output, errors)

    @contextlib.contextmanager
    def started(
        self, command: Sequence[object], environment: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Start a program; at the block's end it is killed, with everything that it started."""
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=self.project,
            env={
                "HOME": str(self.home),
                "PATH": self.programs.path,
                "TMPDIR": str(self.home),
                "LANG": "C.UTF-8",
                "TERM": "dumb",
                **(environment or {}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _kill_group(process.pid)
            process.wait()


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
