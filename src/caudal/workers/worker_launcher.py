"""Models in processes of their own: none of them takes another down, nor who started them."""

from __future__ import annotations

import asyncio
import contextlib

from caudal.errors import CaudalError, WorkerEndedError
from caudal.loading.options import LoadOptions
from caudal.workers.heartbeat import PATIENCE, Patience
from caudal.workers.launcher import (
    ModelMemory,
    ModelPlan,
    ModelSource,
    ProgressCallback,
    ignore_progress,
)
from caudal.workers.process import WAS_STOPPED, WorkerProcess
from caudal.workers.remote_service import RemoteService
from caudal.workers.turns import make_turn_file

STOP_SECONDS = 3.0
"""How long a worker may take to end what runs once it is told to."""


class WorkerLauncher:
    """Launcher (see launcher.py) of models in processes of their own, which take turns.

    Args:
        patience: After how long they are taken to hang.
        log_prompts: Whether what they log may quote requests.
    """

    def __init__(self, patience: Patience = PATIENCE, *, log_prompts: bool = False) -> None:
        self._patience = patience
        self._log_prompts = log_prompts
        self._turns = make_turn_file()

    async def start(self, model: ModelSource, options: LoadOptions) -> WorkerStarting:
        """See `Launcher`."""
        name = model.names[0] if model.names else model.name
        process = await WorkerProcess.start(
            name, self._patience, self._turns, log_prompts=self._log_prompts
        )
        return WorkerStarting(process, model, options)


class WorkerStarting:
    """StartingModel (see launcher.py) in a process of its own.

    Args:
        process: The process; from here on it is this object's.
        model: What it is to load.
        options: How.
    """

    def __init__(self, process: WorkerProcess, model: ModelSource, options: LoadOptions) -> None:
        self._process = process
        self._reading: asyncio.Task[ModelPlan] = asyncio.ensure_future(
            process.connection.call("plan", model, options)
        )
        self._reading.add_done_callback(_retrieve)

    async def plan(self) -> ModelPlan:
        """See `StartingModel`."""
        return await asyncio.shield(self._reading)

    async def open(
        self, memory: int | None = None, progress: ProgressCallback = ignore_progress
    ) -> WorkerModel:
        """See `StartingModel`."""
        connection = self._process.connection
        connection.on_progress = progress
        try:
            await self.plan()
            held: ModelMemory = await connection.call("open", memory)
            service = await RemoteService.connected(connection)
        except BaseException:
            await self.stop()
            raise
        connection.on_progress = ignore_progress
        return WorkerModel(self._process, service, held)

    async def stop(self) -> None:
        """See `StartingModel`. Nobody has been promised anything, so it is killed."""
        self._process.kill(WAS_STOPPED)
        await self._process.wait_ended()


class WorkerModel:
    """RunningModel (see launcher.py) in a process of its own.

    Args:
        process: The process.
        service: The model's.
        memory: What it holds.
    """

    def __init__(self, process: WorkerProcess, service: RemoteService, memory: ModelMemory) -> None:
        self._process = process
        self._service = service
        self._memory = memory

    @property
    def service(self) -> RemoteService:
        """See `RunningModel`."""
        return self._service

    @property
    def memory(self) -> ModelMemory:
        """See `RunningModel`."""
        return self._memory

    @property
    def process_id(self) -> int:
        """See `RunningModel`."""
        return self._process.id

    async def wait_ended(self) -> str:
        """See `RunningModel`."""
        return await self._process.wait_ended()

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """See `RunningModel`."""
        process, connection = self._process, self._process.connection
        connection.refuse(WorkerEndedError(self._service.names[0], WAS_STOPPED))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds):
                    await connection.wait_idle()
            process.expect_end()
            with contextlib.suppress(TimeoutError, CaudalError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._service.shutdown()
                    await process.wait_ended()
        finally:
            process.kill(WAS_STOPPED)
        await process.wait_ended()


def _retrieve(reading: asyncio.Task[ModelPlan]) -> None:
    """Who gives up a model needn't hear why it couldn't be read."""
    if not reading.cancelled():
        reading.exception()
