"""The program in which a store is changed for a server's clients: `run_store_job` starts it.

What it reads on its standard input is what to do; what it writes are reports. It ends with its
parent, or when it is killed: the store is changed whole or not at all.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caudal.engine.wire import pack, unpack
from caudal.errors import CaudalError
from caudal.lifeline import end_with_parent, give_way
from caudal.logs.setup import set_up_worker_logs
from caudal.packaging.create_progress import CreateProgress
from caudal.store import PullProgress, Store
from caudal.store.names import parse_kept_name
from caudal.store.package import PackagedMessage
from caudal.workers.store_messages import (
    LENGTH_BYTES,
    Done,
    JobFailed,
    JobReport,
    JobSays,
    StoreJob,
)

_NICENESS = 5
"""So that whoever has a model loaded doesn't have to wait for one that is made."""

_OOM_SCORE = 500


class _Reports:
    """Writes reports, but none twice in a row."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._last: Mapping[str, Any] = {}

    def write(self, message: JobSays) -> None:
        data = pack(message)
        data = len(data).to_bytes(LENGTH_BYTES, "big") + data
        while data:
            data = data[os.write(self._descriptor, data) :]

    def pulled(self, done: PullProgress) -> None:
        report: dict[str, Any] = {"status": done.status}
        if done.digest:
            report |= {"digest": done.digest, "total": done.total, "completed": done.completed}
        self._report(report)

    def created(self, done: CreateProgress) -> None:
        self._report(done.to_json())

    def _report(self, report: dict[str, Any]) -> None:
        if report != self._last:
            self._last = report
            self.write(JobReport(report))


def _run(job: StoreJob, reports: _Reports) -> None:
    # What one kind needs isn't loaded for another.
    store = Store(Path(job.home))
    match job.kind:
        case "pull":
            store.pull(job.name, reports.pulled, insecure=job.insecure)
        case "push":
            from caudal.store.registry.push import push_image

            push_image(store, parse_kept_name(job.name), reports.pulled, insecure=job.insecure)
        case "create":
            from caudal.packaging.create import create_model
            from caudal.packaging.recipe import Recipe

            recipe = dict(job.recipe)
            messages = [PackagedMessage(**each) for each in recipe.pop("messages", ())]
            create_model(store, job.name, Recipe(messages=messages, **recipe), reports.created)


def main() -> None:
    """Do what is asked, and say how it went."""
    descriptor = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whoever prints says it to the log
    length = int.from_bytes(sys.stdin.buffer.read(LENGTH_BYTES), "big")
    job = unpack(sys.stdin.buffer.read(length), StoreJob)
    end_with_parent(sys.stdin.fileno())
    give_way(_OOM_SCORE)
    os.nice(_NICENESS)
    set_up_worker_logs(logging.INFO, show_prompts=False)
    reports = _Reports(descriptor)
    try:
        _run(job, reports)
    except Exception as error:
        if not isinstance(error, CaudalError):
            logging.getLogger("caudal.store").exception("%s of %s failed", job.kind, job.name)
        from caudal.workers.messages import error_data

        reports.write(JobFailed(error_data(error)))
    else:
        reports.write(Done())


if __name__ == "__main__":
    main()
