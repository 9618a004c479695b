"""What other processes write to their logs, written to ours."""

from __future__ import annotations

import asyncio
import logging
from typing import IO

from caudal.logs.lines import MAX_MESSAGE, told

logger = logging.getLogger("caudal.worker")

_LONGEST = 2**20

_PASSING: set[asyncio.Task[None]] = set()
"""Tasks that pass on logs. They may have to outlive the processes, by what those have started; the
loop alone doesn't keep them."""


def pass_on_log(pipe: IO[bytes] | asyncio.StreamReader, model: str) -> None:
    """Write to our log what a process writes to its own, line by line, to its end.

    Args:
        pipe: What it writes to.
        model: What it is for; lines name it.
    """
    passing = asyncio.ensure_future(_pass_on(pipe, model))
    _PASSING.add(passing)
    passing.add_done_callback(_PASSING.discard)


async def _pass_on(pipe: IO[bytes] | asyncio.StreamReader, model: str) -> None:
    if isinstance(pipe, asyncio.StreamReader):
        await _read(pipe, model)
        return
    reader = asyncio.StreamReader(limit=_LONGEST)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        await _read(reader, model)
    finally:
        transport.close()


async def _read(reader: asyncio.StreamReader, model: str) -> None:
    while True:
        try:
            line = await reader.readline()
        except ValueError:  # a line without an end; what there is of it has been dropped
            continue
        if not line:
            return
        text = line.decode(errors="replace").rstrip()
        record = told(text, model)
        if record is None:  # a library's, or the last words of a process that has crashed
            logger.warning("%s: %s", model, text[:MAX_MESSAGE])
        elif logger.isEnabledFor(record.levelno):
            logger.handle(record)
