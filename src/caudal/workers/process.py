"""A worker's process, as its parent sees it: started, listened to, and its end explained."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from caudal.errors import WorkerEndedError
from caudal.workers.connection import Connection
from caudal.workers.heartbeat import PATIENCE, Listener, Patience
from caudal.workers.turns import TurnFile
from caudal.workers.worker_log import pass_on_log

logger = logging.getLogger("caudal.worker")

RETRY_AFTER = 1
"""Seconds after which it makes sense to ask again for a model whose process has ended."""

GOING_SECONDS = 5.0
"""How long a process may take to end once it has closed its socket; memory has to be given back."""

_POLL_SECONDS = 0.01

_SECRETS = (
    "CAUDAL_API_KEY",
    "CAUDAL_API_KEYS",
    "CAUDAL_SSL_KEYFILE_PASSWORD",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
)
"""What a worker doesn't get to see of the environment."""

WAS_STOPPED = "was stopped"
"""Why one ended that was told to."""


class WorkerProcess:
    """A worker's process.

    Args:
        model: What it is for; errors and the log name it.
        process: It.
        connection: To it.

    Attributes:
        connection: To it.
    """

    def __init__(
        self, model: str, process: subprocess.Popen[bytes], connection: Connection
    ) -> None:
        self.connection = connection
        self._model = model
        self._process = process
        self._reason: str | None = None
        self._closed = asyncio.Event()
        self._listener: Listener | None = None
        self._ending: asyncio.Task[str] | None = None

    @classmethod
    async def start(
        cls,
        model: str,
        patience: Patience = PATIENCE,
        turns: TurnFile | None = None,
        *,
        log_prompts: bool = False,
    ) -> WorkerProcess:
        """Start a process that waits to be told what to load.

        Args:
            model: See above.
            patience: After how long it is taken to hang.
            turns: By which it takes turns with others.
            log_prompts: Whether what it logs may quote requests.

        Raises:
            WorkerEndedError: It can't be started.
        """
        ours, theirs = socket.socketpair()
        heard, told = os.pipe()
        try:
            with theirs:
                shared = [] if turns is None else [turns.descriptor]
                process = _spawn([theirs.fileno(), told, *shared], log_prompts=log_prompts)
        except OSError as error:
            ours.close()
            os.close(heard)
            raise WorkerEndedError(model, f"can't be started: {error}", RETRY_AFTER) from error
        finally:
            os.close(told)
        connection = Connection()
        worker = cls(model, process, connection)
        connection.on_end = worker._on_channel_end
        worker._listener = Listener(heard, worker._on_hang, patience)
        worker._ending = asyncio.ensure_future(worker._end())
        assert process.stdout is not None
        pass_on_log(process.stdout, model)
        try:
            await connection.open(ours)
        except BaseException:
            worker.kill(WAS_STOPPED)
            worker._closed.set()
            raise
        return worker

    @property
    def id(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has, and nothing of it is left."""
        assert self._ending is not None
        return self._ending.done()

    async def wait_ended(self) -> str:
        """Wait until it has; returns why, as the end of a sentence about it."""
        assert self._ending is not None
        return await asyncio.shield(self._ending)

    def kill(self, reason: str) -> None:
        """End it at once, for this reason, unless it has ended for another."""
        if self._reason is None and not self._closed.is_set():
            self._reason = reason
        if self._process.poll() is None:
            self._process.kill()

    def expect_end(self) -> None:
        """It is told to end: when it does, it was stopped."""
        if self._reason is None:
            self._reason = WAS_STOPPED

    def _on_hang(self, reason: str) -> None:
        logger.error("%s: the process %s", self._model, reason)
        self.kill(reason)

    def _on_channel_end(self, reason: str | None) -> None:
        if self._reason is None:
            self._reason = reason
        self._closed.set()

    async def _end(self) -> str:
        """Wait for its end, and have all that is asked of it fail."""
        await self._closed.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOING_SECONDS):
                await self._wait_gone()
        if self._process.poll() is None:
            self._process.kill()
            await self._wait_gone()
        assert self._listener is not None
        self._listener.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        reason = self._reason or _reason(self._process.returncode)
        retry_after = None if reason == WAS_STOPPED else RETRY_AFTER
        self.connection.fail(WorkerEndedError(self._model, reason, retry_after))
        return reason

    async def _wait_gone(self) -> None:
        # Not in a thread: those may all wait for something, and there is no better way everywhere.
        while self._process.poll() is None:
            await asyncio.sleep(_POLL_SECONDS)


def _spawn(descriptors: Sequence[int], *, log_prompts: bool) -> subprocess.Popen[bytes]:
    settings = [logger.getEffectiveLevel(), int(log_prompts)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "caudal.workers.main", *map(str, [*settings, *descriptors])],
        stdin=subprocess.PIPE,  # nothing is written: it ends when this end is closed
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        env=child_environment(),
        start_new_session=True,  # Ctrl-C in a terminal doesn't reach it: its parent ends it
    )


def child_environment() -> dict[str, str]:
    """What a process of ours gets to see of the environment: no secrets, and where we are."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    kept = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    return {**kept, "PYTHONPATH": path}


def _reason(status: int) -> str:
    """Why a process has ended that nobody told to, by its exit status."""
    if status == -signal.SIGKILL:
        return "was killed, probably because memory ran out"
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"has crashed ({name})"
    return f"has ended unexpectedly (exit status {status})"
