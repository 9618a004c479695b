"""The models that there are, as those see them who ask for one by its name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from caudal.service.asking import Asking
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.service import Service

if TYPE_CHECKING:
    from caudal.models.program import Task

State = Literal["unloaded", "loading", "loaded", "unloading"]


class Lease(Protocol):
    """Keeps a model loaded as long as somebody asks something of it."""

    def again(self) -> Lease:
        """Another one, for what goes on when this one has been released."""

    def release(self) -> None:
        """Nothing is asked of it any more. Safe to call twice."""


class _NoLease(Lease):
    """See `NO_LEASE`."""

    def again(self) -> Lease:
        """See `Lease`."""
        return self

    def release(self) -> None:
        """See `Lease`."""


NO_LEASE = _NoLease()
"""Of a model that stays anyway, or that has answered already and may be gone."""


@dataclass(slots=True)
class Found:
    """A model that is ready to be asked.

    Attributes:
        name: The name to answer under; of a cascade, known once it has answered.
        service: The model's.
        lease: Keeps it loaded; release it.
        model: The name that the one asked for led to, where it is an alias or a route.
    """

    name: str
    service: Service
    lease: Lease
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHistory:
    """What has become of a model since the server began.

    Attributes:
        loads: How often it was loaded.
        load_seconds: How long that took together.
        load_failures: How often it could not be loaded.
        unloads: How often it was unloaded.
        unload_seconds: How long that took together.
        crashes: How often its process has ended though nobody had told it to.
    """

    loads: int = 0
    load_seconds: float = 0.0
    load_failures: int = 0
    unloads: int = 0
    unload_seconds: float = 0.0
    crashes: int = 0


NO_HISTORY = ModelHistory()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A model that there is, loaded or not.

    Attributes:
        names: Names that requests may use, its own first.
        state: Whether it is loaded.
        aliases: Those of the names that are none of its own, but lead to it.
        adapters: Names of the adapters that it has, or will have.
        service: What it does, where it is loaded.
        size: Bytes of its files; 0 where nobody knows.
        created: Unix time of its files, in seconds; 0 likewise.
        tasks: What may be asked of it, where that is known already.
        max_model_len: Most tokens of one sequence, likewise.
        memory: Bytes that it has, or is being given; 0 where it isn't loaded.
        sequences: Those of them that are for keys, values and states.
        running: Requests that run on it.
        waiting: Requests that wait until it is loaded, or has its turn.
        expires_in: Seconds after which it is unloaded if nobody asks anything more of it; None
            where it stays, or isn't loaded.
        stage: What its loading is at; empty where it isn't loading.
        progress: Which share of that is done, 0 to 1.
        process_id: Of the process that it is in; None where it is in this one, or in none.
        trouble: What went wrong last, where it hasn't been loaded since.
        leads_to: Of a route, the names of the models that answer.
        deleted: There is no such model any more; it is only still running.
        source: The name or path that the store resolves to its files; empty for a route.
        history: What has become of it so far.
    """

    names: Sequence[str]
    state: State
    aliases: Collection[str] = ()
    adapters: Collection[str] = ()
    service: Service | None = None
    size: int = 0
    created: int = 0
    tasks: frozenset[Task] | None = None
    max_model_len: int | None = None
    memory: int = 0
    sequences: int = 0
    running: int = 0
    waiting: int = 0
    expires_in: float | None = None
    stage: str = ""
    progress: float = 0.0
    process_id: int | None = None
    trouble: str | None = None
    leads_to: Sequence[str] = ()
    deleted: bool = False
    source: str = ""
    history: ModelHistory = NO_HISTORY


class Models(Protocol):
    """The models that there are, by the names that requests may use."""

    def of_request(self, asking: Asking) -> Models:
        """The same, as far as it depends on who asks."""
        return self

    @property
    def ready(self) -> bool:
        """Whether requests can be answered; `caudal.server.gates` keeps them out until then."""

    @property
    def healthy(self) -> bool:
        """Whether all that is to be loaded runs."""

    @property
    def services(self) -> Sequence[Service]:
        """What is loaded, the first that was named first."""

    @property
    def memory(self) -> int | None:
        """Bytes that all models may have together; None where nobody counts."""

    @property
    def room(self) -> int | None:
        """Bytes of these that no model has; None likewise."""

    @property
    def serves_one(self) -> bool:
        """Whether there is one model, and never another."""

    @property
    def names(self) -> Sequence[str]:
        """All names that requests may use, as far as they are known now; adapters' names last."""

    def loaded(self, name: str | None) -> Service | None:
        """The model of a name where it is loaded and known by it; None means the default."""

    def find_now(
        self, name: str | None, task: Task | None = None, *, keep_alive: float | None = None
    ) -> Found | None:
        """What `resolve` returns, where that is known at once; None where it must be waited for."""

    async def resolve(
        self,
        name: str | None,
        task: Task | None = None,
        *,
        context: RequestContext = NO_CONTEXT,
        keep_alive: float | None = None,
    ) -> Found:
        """The model of a name, ready to be asked: loaded, and kept so by a lease.

        Args:
            name: As the request has it; None or empty for the default.
            task: What is to be asked of it.
            context: How long that may take.
            keep_alive: Seconds that it is to stay loaded once nobody asks anything of it, from now
                on; None for what was said last.

        Raises:
            UnknownModelError: There is no such model.
            UnsupportedTaskError: It can't do that.
            ParameterError: There are several models, and none is named.
            QueueFullError: Too many wait for it.
            RequestTimeoutError: Time ran out before it was loaded.
            ModelTooLargeError: There is never enough memory for it.
            ModelLoadError, StoreError: It can't be loaded.
            ModelUnavailableError, EngineDeadError: It can't be had now.
        """

    async def statuses(self) -> Sequence[ModelStatus]:
        """All models that there are. Raises `StoreError` where that can't be known."""

    async def status(self, name: str) -> ModelStatus:
        """A model, loaded or not. Raises `UnknownModelError`, `StoreError`."""

    async def load(self, name: str) -> None:
        """Load a model, and wait until it is; raises what `resolve` raises."""

    async def unload(self, name: str) -> None:
        """Unload a model once nothing runs on it, and wait until it is.

        Raises:
            UnknownModelError: There is no such model.
            ParameterError: It stays.
        """

    async def shutdown(self) -> None:
        """End everything that runs. Safe to call twice."""
