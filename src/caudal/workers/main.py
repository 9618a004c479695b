"""The program in which a model runs: `WorkerProcess` starts it.

It reads the model and says what it takes, loads it when it is told to, answers, and ends when it
is told to, when its parent is gone, or when its engine has failed. Signals that end servers are
left to the parent, which may have answers to be completed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys

from caudal.lifeline import end_with_parent, give_way
from caudal.loading.options import LoadOptions
from caudal.logs.setup import set_up_worker_logs
from caudal.machine import resident_memory
from caudal.service.model_service import ModelService
from caudal.workers.answering import CallServer, ServiceHost
from caudal.workers.heartbeat import Heartbeat
from caudal.workers.in_process import OpenFiles, open_planned
from caudal.workers.launcher import LoadProgress, ModelMemory, ModelPlan, ModelSource
from caudal.workers.messages import Ending, Loading

OOM_SCORE = 300
"""How much rather than others the kernel is to end a worker where memory runs out."""

_CHECK_SECONDS = 0.5

LAST_WORDS_SECONDS = 0.05
"""How long what has been told to end, and has, takes to be on its way to who waits for it."""

logger = logging.getLogger("caudal.worker")


class Worker:
    """Does what its parent calls, until the end.

    Args:
        turn_file: Descriptor of the file by which it takes turns with others; None: there is none.
    """

    def __init__(self, turn_file: int | None) -> None:
        self._turn_file = turn_file
        self._ended = asyncio.Event()
        self._server = CallServer(self._on_channel_end)
        self._files: OpenFiles | None = None
        self._service: ModelService | None = None
        self._server.handlers |= {"plan": self._plan, "open": self._open}

    async def run(self, channel: socket.socket, heartbeat: int) -> None:
        """Answer on a channel; returns when there is nothing more to do."""
        loop = asyncio.get_running_loop()
        Heartbeat(heartbeat, loop, self._rounds, on_parent_gone=lambda: os._exit(0))
        await self._server.channel.open(channel)
        while not self._ended.is_set():
            if self._service is not None and not self._service.healthy:
                await self._say_why()
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _CHECK_SECONDS)

    def _rounds(self) -> int | None:
        return None if self._service is None else self._service.parts.engine.rounds

    def _on_channel_end(self, error: Exception | None) -> None:
        if error is not None:
            logger.error("what the server sent can't be read: %s", error)
        self._ended.set()

    async def _say_why(self) -> None:
        """The engine has failed; answers have been told already."""
        await asyncio.sleep(LAST_WORDS_SECONDS)
        self._server.channel.send(Ending("has ended, for its engine has failed (see the log)"))
        self._server.channel.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _CHECK_SECONDS)

    async def _plan(self, call: int, model: ModelSource, options: LoadOptions) -> ModelPlan:
        if self._files is not None:
            raise ValueError("a worker reads one model")
        self._files = await asyncio.to_thread(open_planned, model, options, resident_memory)
        return self._files.plan

    async def _open(self, call: int, memory: int | None) -> ModelMemory:
        if self._files is None or self._service is not None:
            raise ValueError("there is nothing to be opened")
        loop, channel = asyncio.get_running_loop(), self._server.channel

        def report(progress: LoadProgress) -> None:
            loop.call_soon_threadsafe(channel.send, Loading(progress))

        service = await asyncio.to_thread(self._files.load, memory, report, self._turn_file)
        # What is there now stays: a full collection would look at all of it.
        gc.collect()
        gc.freeze()
        ServiceHost(service, self._server)
        shutdown = self._server.handlers["shutdown"]

        async def end(call: int) -> None:
            self._service = None  # its engine is about to stop, as it should
            await shutdown(call)
            channel.send(Ending("was stopped"))
            loop.call_later(LAST_WORDS_SECONDS, channel.close)

        self._server.handlers["shutdown"] = end
        self._service = service
        return self._files.memory(service)


def main() -> None:
    """Arguments are the level of the log, whether it may quote requests, and descriptors: of the
    channel, of the pipe for signs of life, and of the file for turns where there are any.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler, which what is started won't inherit
    end_with_parent(sys.stdin.fileno())
    give_way(OOM_SCORE)
    faulthandler.enable()
    level, log_prompts, *descriptors = (int(argument) for argument in sys.argv[1:])
    set_up_worker_logs(level, show_prompts=bool(log_prompts))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    channel, heartbeat = socket.socket(fileno=descriptors[0]), descriptors[1]
    turn_file = descriptors[2] if len(descriptors) > 2 else None

    async def run() -> None:
        await Worker(turn_file).run(channel, heartbeat)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run())
        sys.stderr.flush()
        os._exit(0)  # threads may be amid something whose result nobody waits for


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for this system
        return None
    return uvloop.Loop


if __name__ == "__main__":
    main()
