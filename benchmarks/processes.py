"""Child processes that hold a loaded model while others are measured.

Each is the leader of a process group, which is stopped (SIGSTOP) whenever it isn't its turn: an
idle program that polls, or whose threads spin on for a while, must not slow the one measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import httpx2

from benchmarks.places import LOGS, ROOT

START_SECONDS = 300
JOB_SECONDS = 900
"""A worker that takes longer to load or to run a job hangs, and is ended."""
STOP_SECONDS = 20


class ProcessError(Exception):
    """A program could not be started, or ended too early; the message ends with its last words."""


class Child:
    """A program in a process group of its own, whose errors go to a log. A context manager.

    Args:
        command: What to run, from the checkout's root.
        log: The log's name.
        environment: Variables besides those of this process.

    Raises:
        ProcessError: It can't be started.
    """

    def __init__(
        self, command: Sequence[str], log: str, environment: Mapping[str, str] | None = None
    ) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self._log = LOGS / f"{log}.log"
        with self._log.open("w") as errors:
            try:
                self._process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, **(environment or {})},
                    stdin=subprocess.PIPE if self._talks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if self._talks else errors,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
            except OSError as error:
                raise ProcessError(f"cannot run {command[0]}: {error.strerror}") from error

    _talks = False
    """Whether it is talked with; otherwise what it prints goes to the log too."""

    facts: Mapping[str, str] = {}
    """What it says about how it runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep it stopped."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, gently at first."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(signal.SIGCONT)
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
                break
        # What it started itself may outlive it.
        self._signal(signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def failure(self, what: str) -> ProcessError:
        """An error with the log's last line that says something."""
        return ProcessError(f"{what}: {last_words(self._log)} ({self._log.relative_to(ROOT)})")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class Worker(Child):
    """One of `benchmarks.workers`, ready to run jobs.

    Raises:
        ProcessError: It ended before it was ready.
    """

    _talks = True

    def __init__(
        self, command: Sequence[str], log: str, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(command, log, environment)
        try:
            self.facts = self._read("could not load the model")["ready"]
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, int]) -> Mapping[str, Any]:
        """Run a job.

        Raises:
            ProcessError: It failed.
        """
        stdin = self._pipe(self._process.stdin)
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise self.failure("had ended") from error
        done: Mapping[str, Any] = self._read("failed")
        return done

    def _read(self, what: str) -> Any:
        watchdog = threading.Timer(JOB_SECONDS, self._signal, [signal.SIGKILL])
        watchdog.start()
        line = self._pipe(self._process.stdout).readline()
        watchdog.cancel()
        if not line:
            raise self.failure(what)
        return json.loads(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None, "both pipes were asked for"
        return pipe


class Server(Child):
    """A server that answers its health check.

    Args:
        url: Where it will listen.
        health: The path that answers 200 once it is ready.

    Raises:
        ProcessError: It ended before it was ready, or took too long.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: str,
        url: str,
        *,
        health: str = "/health",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(command, log, environment)
        self.url = url
        deadline = time.monotonic() + START_SECONDS
        try:
            while not _answers(url + health):
                if self._process.poll() is not None:
                    raise self.failure("did not start")
                if time.monotonic() > deadline:
                    raise self.failure(f"was not ready after {START_SECONDS} s")
                time.sleep(0.2)
        except BaseException:
            self.close()
            raise


def last_words(log: Path) -> str:
    """The last line of a log that isn't blank, or an ellipsis where all are."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "…")


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5, trust_env=False).status_code == httpx2.codes.OK
    except httpx2.HTTPError:
        return False
