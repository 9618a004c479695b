"""Models in this process: what the library does, and `caudal serve --in-process`.

Where one crashes, all do, and whoever started them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from caudal.engine.turns import Turns
from caudal.loading.load import LoadedModel, PlannedModel, plan_model
from caudal.loading.options import LoadOptions
from caudal.loading.packaged import OWN_ADAPTER
from caudal.service.model_service import ModelService
from caudal.service.parts import ServiceParts
from caudal.store import Store
from caudal.workers.launcher import (
    LoadProgress,
    ModelMemory,
    ModelPlan,
    ModelSource,
    ProgressCallback,
    ignore_progress,
)
from caudal.workers.turns import join_turns


def open_planned(
    model: ModelSource, options: LoadOptions, taken: Callable[[], int] = lambda: 0
) -> OpenFiles:
    """Read a model's files, which stay open; see `StartingModel.plan` for what it raises.

    Args:
        model: The model.
        options: How it is to run.
        taken: Tells the bytes that the model's own process has taken.
    """
    with contextlib.ExitStack() as stack:
        store = Store(None if model.home is None else Path(model.home))
        planned = stack.enter_context(
            plan_model(model.name, options, adapters=model.adapters, store=store)
        )
        return OpenFiles(model, planned, stack.pop_all(), taken())


class OpenFiles:
    """A model's open files.

    Args:
        model: The model.
        planned: What they say.
        stack: Closes them.
        taken: Bytes that the model's own process has taken; 0 where it has none of its own.

    Attributes:
        plan: What the model is and takes in this process.
    """

    def __init__(
        self,
        model: ModelSource,
        planned: PlannedModel,
        stack: contextlib.ExitStack,
        taken: int,
    ) -> None:
        self._model = model
        self._planned = planned
        self._stack = stack
        program, run = planned.files.program, planned.run
        plans = [run.memory]
        if planned.draft_memory is not None:
            plans.append(planned.draft_memory)
        self.plan = ModelPlan(
            names=model.names or (model.name,),
            architecture=planned.files.weights.architecture,
            tasks=program.tasks,
            max_model_len=run.engine.max_model_len,
            context_length=program.context_length,
            weights=sum(plan.weights.held for plan in plans),
            mapped=sum(plan.weights.bytes - plan.weights.held for plan in plans),
            kinds=None if program.is_encoder else run.memory.kinds,
            least=run.memory.least + (0 if planned.draft is None else planned.draft.need),
            workspace=sum(plan.workspace for plan in plans) + run.engine.prefix_bytes,
            process=taken,
            adapters=sum(adapter.nbytes for adapter in planned.adapters.values()),
            draft=None if planned.draft_memory is None else planned.draft_memory.kinds,
        )

    def load(
        self, memory: int | None, progress: ProgressCallback, turn_file: int | None = None
    ) -> ModelService:
        """Load the model, start its engine, and close the files; see `StartingModel.open`.

        Args:
            memory: See there.
            progress: Likewise.
            turn_file: Descriptor of the file by which it takes turns with others.
        """
        with self._stack:
            loaded = self._planned.load(
                memory, lambda share: progress(LoadProgress(stage="weights", share=share))
            )
        progress(LoadProgress(stage="preparing", share=0.0))
        threads = loaded.executor.info.facts.threads
        turns = None if turn_file is None else join_turns(turn_file, threads)
        return ModelService(_parts(loaded, self._model, turns))

    def memory(self, service: ModelService) -> ModelMemory:
        """What the model holds, now that it runs."""
        facts = service.facts.loaded
        own = self._planned.adapters.get(OWN_ADAPTER)
        draft = facts.draft
        weights = [(facts.executor.weight_bytes, facts.executor.weights_mapped)]
        if draft is not None:
            weights.append((draft.weight_bytes, draft.weights_mapped))
        kinds = [facts.memory, None if draft is None else draft.memory]
        return ModelMemory(
            weights=sum(size for size, mapped in weights if not mapped)
            + (0 if own is None else own.nbytes),
            mapped=sum(size for size, mapped in weights if mapped),
            sequences=sum(each.bytes for each in kinds if each is not None),
            workspace=self.plan.workspace,
            process=self.plan.process,
        )

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        self._stack.close()


def _parts(loaded: LoadedModel, model: ModelSource, turns: Turns | None) -> ServiceParts:
    serving = model.serving
    try:
        return ServiceParts.from_loaded(
            loaded,
            model.names,
            tool_parser=serving.tool_parser,
            reasoning_parser=serving.reasoning_parser,
            allow_request_templates=serving.allow_request_templates,
            strict=serving.strict,
            turns=turns,
        )
    except BaseException:
        loaded.close()
        raise


class InProcessLauncher:
    """Launcher (see launcher.py) of models in this process."""

    async def start(self, model: ModelSource, options: LoadOptions) -> InProcessStarting:
        """See `Launcher`."""
        return InProcessStarting(model, options)


class InProcessStarting:
    """StartingModel (see launcher.py) in this process; it reads when it is asked for its plan."""

    def __init__(self, model: ModelSource, options: LoadOptions) -> None:
        self._reading = asyncio.ensure_future(asyncio.to_thread(open_planned, model, options))

    async def plan(self) -> ModelPlan:
        """See `StartingModel`."""
        return (await asyncio.shield(self._reading)).plan

    async def open(
        self, memory: int | None = None, progress: ProgressCallback = ignore_progress
    ) -> InProcessModel:
        """See `StartingModel`. A thread that loads can't be interrupted: what it has loaded by the
        time that it is done is given back.
        """
        loop = asyncio.get_running_loop()

        def report(each: LoadProgress) -> None:
            loop.call_soon_threadsafe(progress, each)

        files = await asyncio.shield(self._reading)
        loading = asyncio.ensure_future(asyncio.to_thread(files.load, memory, report))
        try:
            service = await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(_shut_down)
            raise
        return InProcessModel(service, files.memory(service))

    async def stop(self) -> None:
        """See `StartingModel`."""
        self._reading.add_done_callback(_close)
        await asyncio.wait([self._reading])


def _close(reading: asyncio.Future[OpenFiles]) -> None:
    if not reading.cancelled() and reading.exception() is None:
        reading.result().close()


def _shut_down(loading: asyncio.Future[ModelService]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        ending = loading.get_loop().create_task(loading.result().shutdown())
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)


_ENDING: set[asyncio.Task[None]] = set()
"""Tasks that nobody waits for; the loop alone doesn't keep them."""


class InProcessModel:
    """RunningModel (see launcher.py) in this process.

    Args:
        service: The model's.
        memory: What it holds.
    """

    process_id = None

    def __init__(self, service: ModelService, memory: ModelMemory) -> None:
        self._service = service
        self._memory = memory
        self._ended = asyncio.Event()

    @property
    def service(self) -> ModelService:
        """See `RunningModel`."""
        return self._service

    @property
    def memory(self) -> ModelMemory:
        """See `RunningModel`."""
        return self._memory

    async def wait_ended(self) -> str:
        """See `RunningModel`."""
        await self._ended.wait()
        return "was stopped"

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """See `RunningModel`."""
        await drain(self._service, drain_seconds)
        await self._service.shutdown()
        self._ended.set()


async def drain(service: ModelService, seconds: float) -> None:
    """Wait until nothing runs or waits in a service, for so many seconds at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (stats := await service.stats()).running or stats.waiting:
                await asyncio.sleep(0.02)
