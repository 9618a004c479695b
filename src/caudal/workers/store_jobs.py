"""Changes of a store that take long, each in a process of its own.

Pulling, pushing and making models parse what strangers wrote, and compute for minutes: none of that
is to hold up, or take down, the server that somebody asked for it. Who gives one up has it killed,
which leaves the store as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Any

from caudal.engine.wire import pack, unpack
from caudal.errors import StoreError
from caudal.workers.messages import raised
from caudal.workers.process import child_environment
from caudal.workers.store_messages import (
    LENGTH_BYTES,
    Done,
    JobFailed,
    JobReport,
    JobSays,
    StoreJob,
)
from caudal.workers.worker_log import pass_on_log

_MAX_REPORT = 2**20
_PROGRAM = "caudal.workers.store_job"


async def run_store_job(job: StoreJob) -> AsyncGenerator[dict[str, Any], None]:
    """Do something; close it to give it up.

    Yields:
        Reports.

    Raises:
        CaudalError: It failed.
        RemoteFailureError: It failed as it shouldn't.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _PROGRAM),
            stdin=asyncio.subprocess.PIPE,  # it ends when this end is closed
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise StoreError(f"a process for it can't be started: {error}") from error
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        pass_on_log(process.stderr, job.name)
        data = pack(job)
        with contextlib.suppress(ConnectionError):  # what has become of it shows below
            process.stdin.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
            await process.stdin.drain()
        while True:
            match await _message(process):
                case JobReport(report):
                    yield report
                case JobFailed(why):
                    raise raised(why)
                case Done():
                    return
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())


async def _message(process: asyncio.subprocess.Process) -> JobSays:
    assert process.stdout is not None
    try:
        length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
        if length > _MAX_REPORT:
            raise StoreError("its process says what can't be read")
        return unpack(await process.stdout.readexactly(length), JobSays)  # type: ignore[arg-type]
    except asyncio.IncompleteReadError:
        status = await process.wait()
        how = "was killed" if status == -signal.SIGKILL else f"ended (status {status})"
        raise StoreError(f"its process {how}; the store is as it was before") from None
