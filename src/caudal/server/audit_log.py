"""Who asked which model when, and what came of it: a line of JSON a request, without content.

Lines are written by a thread, for a disk may take its time, and keep their order. What can't be
written, because the disk is full, say, is kept and tried again; the server goes on meanwhile, and
where too much has gathered, the newest lines are lost, counted, and said to be.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from caudal.errors import CaudalError, in_words
from caudal.logs.formats import json_line, rfc3339
from caudal.server.records import RequestRecord
from caudal.server.request_log import facts_of, is_probe

logger = logging.getLogger("caudal.server")

STDOUT = "-"
"""Stands for the standard output."""

MOST_WAITING = 100_000
"""Lines that may wait to be written: some 40 MB."""

SYNC_SECONDS = 1.0
"""How much may be lost with the machine: what was written last."""

RETRY_SECONDS = 1.0
COMPLAINT_SECONDS = 30.0
"""How often the log says that lines can't be written."""

CLOSE_SECONDS = 0.5
"""How long the last lines may take once the server ends."""


class AuditLogError(CaudalError):
    """The audit log can't be written where it should be."""


class AuditLog(Collector):
    """A `RecordSink` that appends lines to a file.

    Args:
        path: The file; "-" for the standard output.

    Raises:
        AuditLogError: It can't be opened.

    Attributes:
        lost: Lines that there was no room for.
    """

    def __init__(self, path: str) -> None:
        self.lost = 0
        self._path = path
        self._descriptor = _open(path)
        self._waiting: deque[bytes] = deque()
        self._written = 0  # bytes of the first that waits
        self._changed = threading.Condition()
        self._reopening = self._closing = self._in_trouble = False
        self._unsynced = False
        self._next_sync = self._next_complaint = 0.0
        self._thread = threading.Thread(target=self._run, name="caudal-audit-log", daemon=True)
        self._thread.start()

    def ended(self, record: RequestRecord) -> None:
        """See `RecordSink`."""
        if is_probe(record):
            return
        facts = {"time": rfc3339(record.arrived_at), "request_id": record.id, **facts_of(record)}
        said = {name: value for name, value in facts.items() if value is not None}
        line = json_line(said).encode() + b"\n"
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self.lost += 1
                return
            self._waiting.append(line)
            self._changed.notify()

    def reopen(self) -> None:
        """Go on in a new file where the old one has been moved away.

        Raises:
            AuditLogError: There can't be one; then the old one it is.
        """
        if self._path == STDOUT:
            return
        os.close(_open(self._path))
        with self._changed:
            self._reopening = True
            self._changed.notify()

    def collect(self) -> Iterator[Metric]:
        """How many lines are lost, for Prometheus."""
        yield CounterMetricFamily(
            "caudal_audit_log_lost_lines",
            "Lines of the audit log that were lost, for they couldn't be written.",
            value=self.lost,
        )

    def close(self) -> None:
        """Write what waits, as far as that takes no time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    # The thread

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._ready():
                    self._changed.wait(self._patience())
                lines = list(self._waiting)
                reopening, self._reopening = self._reopening, False
                closing = self._closing
            if reopening:
                self._reopen()
            try:
                self._write(lines)
                self._sync(now=closing)
            except OSError as error:
                self._complain(error)
                if closing:
                    return
                time.sleep(RETRY_SECONDS)
                continue
            self._calm()
            if closing:
                return

    def _ready(self) -> bool:
        return bool(self._waiting) or self._reopening or self._closing

    def _patience(self) -> float | None:
        return max(self._next_sync - time.monotonic(), 0.0) if self._unsynced else None

    def _write(self, lines: list[bytes]) -> None:
        """Append lines; raises `OSError` amid one where there is no more room."""
        taken = 0
        try:
            data = b"".join(lines)[self._written :]
            while data:
                size = os.write(self._descriptor, data)
                self._unsynced = True
                data = data[size:]
                self._written += size
        finally:
            while taken < len(lines) and self._written >= len(lines[taken]):
                self._written -= len(lines[taken])
                taken += 1
            with self._changed:
                for _ in range(taken):
                    self._waiting.popleft()

    def _sync(self, *, now: bool) -> None:
        if not self._unsynced or not (now or time.monotonic() >= self._next_sync):
            return
        self._next_sync = time.monotonic() + SYNC_SECONDS
        self._unsynced = False
        if _is_file(self._descriptor):
            os.fsync(self._descriptor)

    def _reopen(self) -> None:
        try:
            descriptor = _open(self._path)
        except AuditLogError as error:
            logger.error("%s", error)
            return
        with contextlib.suppress(OSError):
            self._sync(now=True)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._written = 0  # a line that was cut is written whole in the new file

    def _complain(self, error: OSError) -> None:
        self._in_trouble = True
        if time.monotonic() < self._next_complaint:
            return
        self._next_complaint = time.monotonic() + COMPLAINT_SECONDS
        logger.error(
            "the audit log %s can't be written: %s (%d lines wait, %d are lost)",
            self._path,
            in_words(error),
            len(self._waiting),
            self.lost,
        )

    def _calm(self) -> None:
        if self._in_trouble:
            self._in_trouble = False
            self._next_complaint = 0.0
            logger.warning("the audit log is written again; %d lines are lost", self.lost)


def _open(path: str) -> int:
    if path == STDOUT:
        return 1
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(Path(path).expanduser(), flags, 0o600)
    except OSError as error:
        raise AuditLogError(f"the audit log can't be written to {path}: {in_words(error)}") from (
            error
        )


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
