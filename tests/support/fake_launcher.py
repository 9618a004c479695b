"""Models that are started, read and loaded as a test says: with any sizes, delays and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caudal.backends.backend import MemoryKinds, PagedKV
from caudal.errors import ModelNotFoundError
from caudal.fleet.catalogue import GivenModels
from caudal.fleet.offer import ModelOffer
from caudal.loading.options import LoadOptions
from caudal.models.program import Task
from caudal.service.info import AdapterInfo
from caudal.service.service import Service
from caudal.workers.launcher import (
    LoadProgress,
    ModelMemory,
    ModelPlan,
    ModelSource,
    ProgressCallback,
    ignore_progress,
)

GENERATES: frozenset[Task] = frozenset(("generate",))


class NamedService(Service):
    """A service that only has a name and tasks."""

    def __init__(self, name: str, tasks: frozenset[Task]) -> None:
        self._name = name
        self._tasks = tasks

    @property
    def names(self) -> Sequence[str]:
        return (self._name,)

    @property
    def tasks(self) -> frozenset[Task]:
        return self._tasks

    @property
    def healthy(self) -> bool:
        return True

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        return ()

    async def shutdown(self) -> None:
        """Nothing runs."""


@dataclass
class FakeModel:
    """What a made-up model is like.

    Attributes:
        fixed: Bytes that it takes in any case.
        least: Bytes for sequences at least.
        usual: Bytes for sequences where there is room.
        read_seconds: How long reading it takes.
        open_seconds: How long loading it takes.
        stop_seconds: How long unloading it takes.
        read_error: What reading it ends with instead.
        open_error: What loading it ends with instead.
        make_service: Starts what it does once it is loaded, by its name.
    """

    fixed: int = 10
    least: int = 1
    usual: int = 4
    read_seconds: float = 0.1
    open_seconds: float = 1.0
    stop_seconds: float = 0.1
    read_error: Exception | None = None
    open_error: Exception | None = None
    make_service: Callable[[str], Service] | None = None
    tasks: frozenset[Task] = GENERATES


@dataclass
class FakeLauncher:
    """Starts them, and counts.

    Attributes:
        models: What there is, by name.
        started: The names of those that were started, in order.
        alive: Those that were started and have not ended.
        loaded: Those of them that run.
        most_bytes: The most that all had together.
    """

    models: Mapping[str, FakeModel]
    started: list[str] = field(default_factory=list)
    alive: list[FakeStarting | FakeRunning] = field(default_factory=list)
    loaded: dict[str, FakeRunning] = field(default_factory=dict)
    bytes: int = 0
    most_bytes: int = 0

    async def start(self, model: ModelSource, options: LoadOptions) -> FakeStarting:
        self.started.append(model.name)
        starting = FakeStarting(self, model.name)
        self.alive.append(starting)
        return starting

    def take(self, size: int) -> None:
        self.bytes += size
        self.most_bytes = max(self.most_bytes, self.bytes)


class FakeStarting:
    def __init__(self, launcher: FakeLauncher, name: str) -> None:
        self._launcher = launcher
        self.name = name

    async def plan(self) -> ModelPlan:
        model = self._launcher.models.get(self.name)
        if model is None:
            raise ModelNotFoundError(f"{self.name} isn't here")
        await asyncio.sleep(model.read_seconds)
        if model.read_error is not None:
            raise model.read_error
        return ModelPlan(
            names=(self.name,),
            architecture="fake",
            tasks=model.tasks,
            max_model_len=512,
            context_length=512,
            weights=model.fixed,
            kinds=MemoryKinds(kv=PagedKV(num_blocks=model.usual, block_size=1, bytes_per_token=1)),
            least=model.least,
            workspace=0,
            process=0,
        )

    async def open(
        self, memory: int | None = None, progress: ProgressCallback = ignore_progress
    ) -> FakeRunning:
        model = self._launcher.models[self.name]
        assert memory is not None
        assert memory >= model.least
        self._launcher.take(model.fixed + memory)
        try:
            progress(LoadProgress(stage="weights", share=0.0))
            await asyncio.sleep(model.open_seconds / 2)
            progress(LoadProgress(stage="weights", share=0.5))
            await asyncio.sleep(model.open_seconds / 2)
            if model.open_error is not None:
                raise model.open_error
        except BaseException:
            self._launcher.take(-model.fixed - memory)
            await self.stop()
            raise
        self._launcher.alive.remove(self)
        return FakeRunning(self._launcher, self.name, memory)

    async def stop(self) -> None:
        if self in self._launcher.alive:
            self._launcher.alive.remove(self)


class FakeRunning:
    process_id = None

    def __init__(self, launcher: FakeLauncher, name: str, granted: int) -> None:
        self._launcher = launcher
        self._model = launcher.models[name]
        self.name = name
        self.granted = granted
        self.memory = ModelMemory(
            weights=self._model.fixed, sequences=granted, workspace=0, process=0
        )
        make = self._model.make_service
        self.service = NamedService(name, self._model.tasks) if make is None else make(name)
        self.loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self.loop.create_future()
        self.stopping = False
        assert name not in launcher.loaded, "it was loaded twice"
        launcher.alive.append(self)
        launcher.loaded[name] = self

    async def wait_ended(self) -> str:
        return await asyncio.shield(self._ended)

    async def stop(self, drain_seconds: float = 0.0) -> None:
        self.stopping = True
        await asyncio.sleep(self._model.stop_seconds)
        await self.service.shutdown()
        self.crash("was stopped")

    def crash(self, reason: str) -> None:
        """End it."""
        if not self._ended.done():
            self._ended.set_result(reason)
            self._launcher.take(-self.memory.bytes)
            self._launcher.alive.remove(self)
            if self._launcher.loaded.get(self.name) is self:
                del self._launcher.loaded[self.name]


def offers(names: Sequence[str], **more: Any) -> list[ModelOffer]:
    """Models of these names."""
    return [
        ModelOffer(source=ModelSource(name=name, names=(name,)), names=(name,), **more)
        for name in names
    ]


class Offered(GivenModels):
    """Models of which there may be more later, as in a store."""

    grows = True

    def mark(self) -> Hashable:
        return self.offers()

    def change(self, offers: Sequence[ModelOffer]) -> None:
        """There are others from now on."""
        self._offers = tuple(offers)
