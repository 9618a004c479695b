"""How a model is brought to run, whoever decides that it is to: start, plan, open.

Between a plan and its opening stands whoever decides whether there is memory for it. Everything
that is in the model's files is read, and everything that they say is run, where the model is: in a
process of its own (`WorkerLauncher`), or in this one (`InProcessLauncher`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from caudal.backends.backend import MemoryKinds
from caudal.loading.options import LoadOptions
from caudal.models.program import Task
from caudal.service.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """What a user may choose about how answers are read, and which requests are taken.

    Attributes:
        tool_parser: How the model writes tool calls; see `ChatPreparer`.
        reasoning_parser: How it marks its reasoning; likewise.
        allow_request_templates: Whether requests may bring chat templates of their own.
        strict: Refuse what could not be given as it was asked for; see `ServiceParts`.
    """

    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    allow_request_templates: bool = False
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model that is on this machine, and what it is served as.

    Attributes:
        name: A name that the store resolves, or the path of a GGUF file or of a model's folder.
        names: Names that requests use for it, its own first; by default `name`.
        home: The store's directory; None for the user's.
        adapters: Those that it begins with: by name, their paths.
        serving: How answers are read, and which requests are taken.
    """

    name: str
    names: tuple[str, ...] = ()
    home: str | None = None
    adapters: dict[str, str] = field(default_factory=dict)
    serving: ServingOptions = field(default_factory=ServingOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What a model is and takes, before anything is set aside for it.

    Attributes:
        names: Names that requests use for it; its own first.
        architecture: The model family.
        tasks: What may be asked of it.
        max_model_len: Most tokens of one sequence, with the memory that is planned.
        context_length: Tokens it was trained for.
        weights: Bytes of memory that its weights take, packed.
        mapped: Bytes of its weights that are mapped from a file instead: the system takes them back
            when memory is short, and has one copy for all processes.
        kinds: What there will be of each kind of memory where nobody says otherwise; None for a
            model that keeps nothing.
        least: Bytes of these kinds without which a sequence of the usual length (or of the length
            that options ask for) has no room.
        workspace: Bytes of what an iteration computes with, and of memory for prefixes beyond
            `kinds`.
        process: Bytes that its process has taken before; 0 where it is in this one.
        adapters: Bytes of the adapters that it begins with, as they are read: about what they take.
        draft: What there will be of each kind for its draft model; None where it has none, whose
            weights and workspace are in those above otherwise.
    """

    names: tuple[str, ...]
    architecture: str
    tasks: frozenset[Task]
    max_model_len: int
    context_length: int
    weights: int
    mapped: int = 0
    kinds: MemoryKinds | None
    least: int
    workspace: int
    process: int
    adapters: int = 0
    draft: MemoryKinds | None = None

    @property
    def memory(self) -> int:
        """Bytes that it takes for sequences where nobody says otherwise."""
        return sum(kinds.bytes for kinds in (self.kinds, self.draft) if kinds is not None)

    @property
    def fixed(self) -> int:
        """Bytes that it takes whatever it is given for sequences."""
        return self.weights + self.workspace + self.process + self.adapters

    @property
    def bytes(self) -> int:
        """Bytes that it takes in all where nobody says otherwise."""
        return self.fixed + self.memory

    @property
    def least_bytes(self) -> int:
        """Bytes below which it can't run."""
        return self.fixed + self.least


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """What a running model holds, in bytes; adapters that come and go are not in it.

    Attributes:
        weights: Its weights, as they are packed, and the adapter that belongs to it.
        mapped: Those that are mapped from a file, which the system may take back; not in `bytes`.
        sequences: Keys, values and states, once all of it has been used.
        workspace: What an iteration computes with, and prefixes beyond `sequences`.
        process: What its process had taken before it was loaded; 0 where it is in this one.
    """

    weights: int
    mapped: int = 0
    sequences: int
    workspace: int
    process: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.weights + self.sequences + self.workspace + self.process


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a model's loading is.

    Attributes:
        stage: `weights` are being packed, then what the first answer needs is `prepared`.
        share: Of that stage's work, 0 to 1.
    """

    stage: Literal["weights", "preparing"]
    share: float


ProgressCallback = Callable[[LoadProgress], None]


def ignore_progress(progress: LoadProgress) -> None:
    """Nobody watches."""


class RunningModel(Protocol):
    """A model that answers, until it ends. It never comes back: who wants it again starts it again.

    Attributes:
        service: What it does. Once it has ended, calls and running answers fail with a
            `WorkerEndedError` that says why.
        memory: What it holds.
    """

    @property
    def service(self) -> Service: ...

    @property
    def memory(self) -> ModelMemory: ...

    @property
    def process_id(self) -> int | None:
        """Of the process that it is in; None where it is in this one."""

    async def wait_ended(self) -> str:
        """Wait until it has ended; returns why: it was stopped, has crashed, was killed, hung."""

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Take no more requests, let running answers go on for so long, and end.

        All that it held is given back when this returns. Safe to call twice.
        """


class StartingModel(Protocol):
    """A model that is being read. Open it, or stop it."""

    async def plan(self) -> ModelPlan:
        """What it is and takes: its files have been read, nothing is set aside.

        Safe to call twice, and at once.

        Raises:
            ModelNotFoundError, StoreError: It isn't here, or is damaged.
            ModelLoadError: Its files can't be used.
            ParameterError: An option makes no sense, or doesn't fit this model.
            WorkerEndedError: Its process has ended.
        """

    async def open(
        self, memory: int | None = None, progress: ProgressCallback = ignore_progress
    ) -> RunningModel:
        """Load it. Call it once. A call that fails, or is cancelled, has stopped it.

        Args:
            memory: Bytes that it may take for sequences: keys, values and states; None: as planned.
            progress: Called as it gets on, on this event loop.

        Raises:
            ModelLoadError: Its files can't be used.
            ParameterError: So much memory doesn't suffice.
            TemplateProcessError: The processes that templates run in can't be started.
            WorkerEndedError: Its process has ended.
        """

    async def stop(self) -> None:
        """Give it up. Safe to call twice; once it is open, `RunningModel.stop` is to be called."""


class Launcher(Protocol):
    """Starts models."""

    async def start(self, model: ModelSource, options: LoadOptions) -> StartingModel:
        """Begin to read a model.

        Raises:
            WorkerEndedError: A process for it can't be started.
        """
