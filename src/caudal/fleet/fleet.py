"""The models that there are: found by name, loaded when they are asked for, unloaded for others.

Everything here happens on one event loop, and nothing is waited for while it is decided. Whoever
asks waits for a `Lease`; what brings a model from one stage to the next is a task of its own, so
that it doesn't matter who of those that wait for it goes away.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from caudal.errors import (
    CaudalError,
    EngineDeadError,
    ModelLoadError,
    ModelNotFoundError,
    ModelTooLargeError,
    ModelUnavailableError,
    ParameterError,
    QueueFullError,
    RequestTimeoutError,
    UnknownModelError,
    UnsupportedTaskError,
    WorkerEndedError,
)
from caudal.fleet.catalogue import Catalogue
from caudal.fleet.durations import FOREVER
from caudal.fleet.member import (
    LONGEST_BACK_OFF,
    Lease,
    Member,
    ModelOffer,
    Stay,
    Waiter,
    names_of,
)
from caudal.fleet.policy import PAUSE, TURN, Bounds, MemoryNeed, Moves, Stage, decide
from caudal.loading.options import LoadOptions
from caudal.service.adapted import AdaptedService
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.models import Found, Models, ModelStatus, State
from caudal.service.service import Service
from caudal.workers.launcher import Launcher, LoadProgress

if TYPE_CHECKING:
    from caudal.models.program import Task

logger = logging.getLogger("caudal.fleet")

PROGRESS_SECONDS = 10.0
"""Between two words in the log about the same model's loading."""

SHARE_OF_ONE = 4
"""A model's sequences get at most this part of the memory of all, where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What a user may choose about how models come and go.

    Attributes:
        memory: Bytes that all models may have together.
        load: How each of them runs.
        max_loaded: Most models that are loaded at a time; None for as many as fit.
        keep_alive: Seconds that a model stays loaded while nobody asks anything of it.
        max_waiting: Most requests that wait for one model to be loaded; whom it is loaded for may
            in any case.
        turn: See `Bounds`.
        pause: See `Bounds`.
        first_back_off: Seconds after which a model that couldn't be loaded is tried again.
    """

    memory: int
    load: LoadOptions = field(default_factory=LoadOptions)
    max_loaded: int | None = None
    keep_alive: float = 300.0
    max_waiting: int = 1024
    turn: float = TURN
    pause: float = PAUSE
    first_back_off: float = 1.0


class Fleet(Models):
    """See the module.

    Args:
        catalogue: Which models there are.
        launcher: Starts them.
        options: The user's choices.
    """

    def __init__(self, catalogue: Catalogue, launcher: Launcher, options: FleetOptions) -> None:
        self.options = options
        self._catalogue = catalogue
        self._launcher = launcher
        self._bounds = Bounds(
            memory=options.memory,
            max_loaded=options.max_loaded,
            turn=options.turn,
            pause=options.pause,
        )
        self._members: dict[str, Member] = {}  # by their own names, in the catalogue's order
        self._by_name: dict[str, Member] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # of which each ends by itself
        self._watching: set[asyncio.Task[None]] = set()
        self._refusal: str | None = None
        self._started = False

    # What there is

    @property
    def ready(self) -> bool:
        """See `Models`."""
        return self._started

    @property
    def healthy(self) -> bool:
        """Whether what is to stay is loaded and runs; others may come and go."""
        return self._refusal is None and all(
            member.stay is not None and member.stay.running.service.healthy
            for member in self.members
            if member.offer.pinned and not member.sent_away
        )

    @property
    def memory(self) -> int:
        """See `Models`."""
        return self.options.memory

    @property
    def keep_alive(self) -> float:
        """Seconds that models stay where no request says otherwise."""
        kept = [member.default_keep_alive for member in self.members]
        return min(kept, default=self.options.keep_alive)

    @property
    def serves_one(self) -> bool:
        """See `Models`."""
        return not self._catalogue.grows and len(self._members) == 1

    @property
    def names(self) -> Sequence[str]:
        """See `Models`."""
        adapters = [name for member in self.members for name in member.current_adapters()]
        return list(dict.fromkeys([*names_of(self.members), *adapters]))

    @property
    def members(self) -> list[Member]:
        """All models, as they were when somebody looked last."""
        return list(self._members.values())

    @property
    def services(self) -> list[Service]:
        """See `Models`."""
        return [member.stay.running.service for member in self.members if member.stay is not None]

    async def statuses(self) -> Sequence[ModelStatus]:
        """See `Models`."""
        now = asyncio.get_running_loop().time()
        return [_status(member, now) for member in await self.refresh()]

    async def status(self, name: str) -> ModelStatus:
        """See `Models`."""
        return _status(await self._member(name), asyncio.get_running_loop().time())

    async def refresh(self) -> list[Member]:
        """All models, as they are now.

        Raises:
            StoreError: That can't be known.
        """
        if self._catalogue.grows or not self._members:
            self._take_offers(await asyncio.to_thread(self._catalogue.offers))
        return self.members

    def _take_offers(self, offers: Iterable[ModelOffer]) -> None:
        offered = {offer.name: offer for offer in offers}
        for name, member in list(self._members.items()):
            if name not in offered and member.stage is Stage.UNLOADED and not member.waiters:
                del self._members[name]
        for name, offer in offered.items():
            known = self._members.get(name)
            if known is None:
                self._members[name] = Member(offer, self._keep_alive(offer), self._on_idle)
            elif known.stage is Stage.UNLOADED:
                known.offer = offer  # it may have been fetched anew
        # Own names come before others' other names, and who was named first before the rest.
        self._by_name = {}
        for member in self.members:
            for name in member.offer.names:
                self._by_name.setdefault(name, member)
        for member in self.members:
            for name in member.offer.other_names:
                self._by_name.setdefault(name, member)

    def _keep_alive(self, offer: ModelOffer) -> float:
        """How long a model stays where no request says otherwise."""
        if offer.keep_alive is not None:
            return offer.keep_alive
        return FOREVER if offer.pinned else self.options.keep_alive

    # Finding models

    def loaded(self, name: str | None) -> Service | None:
        """See `Models`."""
        member = self._known(name)
        return None if member is None or member.stay is None else member.stay.running.service

    def _known(self, name: str | None) -> Member | None:
        """The model of a name, as far as that is known without looking."""
        if name:
            return self._by_name.get(name)
        return next(iter(self._members.values())) if self.serves_one else None

    def find_now(
        self, name: str | None, task: Task | None = None, *, keep_alive: float | None = None
    ) -> Found | None:
        """See `Models`; raises nothing that `resolve` wouldn't."""
        member = self._known(name)
        stay = None if member is None else member.open_stay
        if member is None or stay is None or self._refusal is not None:
            return None
        return self._found(name, member, stay.lease(), task, keep_alive)

    async def resolve(
        self,
        name: str | None,
        task: Task | None = None,
        *,
        context: RequestContext = NO_CONTEXT,
        keep_alive: float | None = None,
    ) -> Found:
        """See `Models`."""
        member = await self._member(name)
        if task is not None and member.plan is not None and task not in member.plan.tasks:
            raise UnsupportedTaskError(member.name, task, sorted(member.plan.tasks))
        stay = member.open_stay
        if stay is None:
            seconds = _seconds_left(context, self.options.load, generates=task == "generate")
            lease = await self._wait(member, seconds)
        else:
            lease = stay.lease()
        return self._found(name, member, lease, task, keep_alive)

    def _found(
        self,
        name: str | None,
        member: Member,
        lease: Lease,
        task: Task | None,
        keep_alive: float | None,
    ) -> Found:
        service = lease.service
        try:
            if task is not None:
                service.check_task(task)
            if name and self._named(name) is None:
                service = self._adapted(service, name)
        except BaseException:
            lease.release()
            raise
        if keep_alive is not None:
            member.keep_alive = keep_alive
        return Found(name or member.name, service, lease)

    def _adapted(self, service: Service, name: str) -> AdaptedService:
        """A model with one of its adapters, which may be gone since the model was found by it."""
        for adapter in service.adapters:
            if adapter.name == name:
                return AdaptedService(service, adapter)
        raise UnknownModelError(name, self.names)

    async def _member(self, name: str | None) -> Member:
        if self._refusal is not None:
            raise EngineDeadError(self._refusal)
        if not name:
            return await self._default()
        found = self._find(name)
        if found is None:
            await self.refresh()
            found = self._find(name)
        if found is None:
            raise UnknownModelError(name, self.names)
        return found

    def _find(self, name: str) -> Member | None:
        found = self._named(name)
        if found is not None:
            return found
        return next((each for each in self.members if name in each.current_adapters()), None)

    def _named(self, name: str) -> Member | None:
        """The model whose own name this is, and no adapter's."""
        return self._by_name.get(name) or self._by_name.get(name.lower())

    async def _default(self) -> Member:
        """The model that is meant where none is named: the first of those that were given."""
        members = self.members or await self.refresh()
        if not members:
            raise UnknownModelError("", [])
        if self._catalogue.grows and len(members) > 1:
            names = ", ".join(names_of(members))
            raise ParameterError("model", f"model: there are several models; name one of {names}.")
        return members[0]

    # Waiting for models

    async def _wait(
        self, member: Member, seconds: float | None = None, *, modest: bool = False
    ) -> Lease:
        """Wait until a model takes requests, for so long at most; see `Waiter` for the rest."""
        loop, trouble = asyncio.get_running_loop(), member.trouble
        if trouble is not None and member.stage is Stage.UNLOADED:
            now = loop.time()
            if now < trouble.retry_at:
                raise trouble.told(now)
        if member.waiting >= max(1, self.options.max_waiting):
            raise QueueFullError(self.options.max_waiting, 1, f"The queue of {member.name}")
        waiter = Waiter(loop.time(), loop.create_future(), modest=modest)
        member.waiters[waiter] = None
        member.sent_away = False
        self._review()
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                return await waiter.lease
        except BaseException as error:
            self._leave(member, waiter)
            if isinstance(error, TimeoutError) and timer.expired():
                raise RequestTimeoutError(
                    f"The request timed out: the model {member.name!r} was still being loaded, or "
                    f"waiting for its turn, after {seconds:.1f} s."
                ) from None
            raise

    def _leave(self, member: Member, waiter: Waiter) -> None:
        """Somebody waits no more; what they were given meanwhile is given back."""
        lease = waiter.lease
        if lease.done() and not lease.cancelled() and lease.exception() is None:
            lease.result().release()
        if waiter in member.waiters:
            del member.waiters[waiter]
            self._review()

    # Loading and unloading on demand

    async def load(self, name: str) -> None:
        """See `Models`."""
        member = await self._member(name)
        if member.stay is None:
            (await self._wait(member)).release()

    async def unload(self, name: str) -> None:
        """See `Models`.

        What comes for it meanwhile waits, and is what it is loaded for again. One that is being
        loaded isn't any more, and who waits for it is told.
        """
        member = await self._member(name)
        member.sent_away = True
        if member.stage in (Stage.READING, Stage.READ, Stage.OPENING):
            await self._stop_loading(member)
        elif member.stay is not None:
            member.told_to_go = True
            stay = member.stay
            self._review()
            while member.stay is stay:
                await member.changed.wait()

    async def _stop_loading(self, member: Member) -> None:
        member.fail(ModelUnavailableError(member.name, "was told to stop while it was loaded"))
        if member.task is None:
            self._review()  # it has been read, and nobody waits for it any more
        else:
            _cancel(member.task)
        if member.task is not None:  # not until a stage: it may be loaded for others right away
            await asyncio.wait([member.task])

    async def start(self, names: Sequence[str] = ()) -> None:
        """See which models there are, and load some, those that fit beside each other.

        Args:
            names: Those to load, the first first.

        Raises:
            CaudalError: One of them can't be loaded.
        """
        await self.refresh()
        for place, name in enumerate(names):
            try:
                (await self._wait(await self._member(name), modest=place > 0)).release()
            except ModelUnavailableError as error:
                logger.info("%s It is loaded when it is asked for.", error)
        self._started = True

    async def shutdown(self) -> None:
        """End everything that runs. Safe to call twice, and to be given up half-way."""
        self._refusal = "The server is shutting down."
        if self._timer is not None:
            self._timer.cancel()
        for member in self.members:
            member.fail(EngineDeadError(self._refusal))
            if member.stage is Stage.LOADED:
                self._begin(member, Stage.UNLOADING, self._unload)
            elif member.stage is Stage.READ:
                self._begin(member, Stage.CLOSING, self._close)
            elif member.stage in (Stage.READING, Stage.OPENING) and member.task is not None:
                _cancel(member.task)
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    # What is to be done, and doing it

    def _on_idle(self, member: Member) -> None:
        """The last request on a model has ended; mostly there is nothing to be done."""
        look_at = math.inf if self._timer is None else self._timer.when()
        if member.keep_until < look_at or member.told_to_go or self._somebody_waits():
            self._review()

    def _somebody_waits(self) -> bool:
        return any(member.waiters for member in self._members.values())

    def _review(self) -> None:
        """Look at everything, and begin what is to be done."""
        if self._refusal is not None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        moves = decide([each.state(self._need(each)) for each in self.members], self._bounds, now)
        for name in moves.refuse:
            self._refuse(self._members[name])
        for name in moves.put_off:
            self._members[name].fail(
                ModelUnavailableError(name, "has no room beside those that are loaded")
            )
        for name in (*moves.refuse, *moves.put_off, *moves.give_up):
            self._begin(self._members[name], Stage.CLOSING, self._close)
        for name in moves.read:
            self._begin(self._members[name], Stage.READING, self._read)
        for name, granted in moves.open.items():
            self._members[name].granted = granted
            self._begin(self._members[name], Stage.OPENING, self._open)
        for name, reason in moves.unload.items():
            logger.info("unloading %s: %s", name, reason)
            self._begin(self._members[name], Stage.UNLOADING, self._unload)
        self._admit(moves)
        self._look_again(moves.wake_at)

    def _admit(self, moves: Moves) -> None:
        """Let those in who wait for what is there."""
        for member in self._members.values():
            member.closed = member.name in moves.closed
            stay = member.stay
            if stay is None or member.closed or member.stage is not Stage.LOADED:
                continue
            waiters, member.waiters = member.waiters, {}
            for waiter in waiters:
                if not waiter.lease.done():
                    waiter.lease.set_result(stay.lease())

    def _look_again(self, time: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if time < math.inf:
            self._timer = asyncio.get_running_loop().call_at(time, self._review)

    def _need(self, member: Member) -> MemoryNeed | None:
        plan = member.plan
        if plan is None:
            return None
        usual = least = plan.memory
        if self.options.load.kv_memory is None and plan.kinds is not None:
            least = min(plan.least, plan.memory)
            usual = max(least, min(plan.memory, self.options.memory // SHARE_OF_ONE))
        return MemoryNeed(fixed=plan.fixed, least=least, usual=usual)

    def _refuse(self, member: Member) -> None:
        need = self._need(member)
        assert need is not None
        pinned = [each for each in self.members if each.offer.pinned and each.held]
        kept = sum(each.held for each in pinned)
        if need.least_bytes + kept > self.options.memory:
            member.fail(
                ModelTooLargeError(member.name, need.least_bytes, self.options.memory, kept)
            )
        else:
            names = " and ".join(each.name for each in pinned)
            reason = f"can't be loaded: {names}, to be kept loaded, take all places that there are"
            member.fail(ModelUnavailableError(member.name, reason))

    def _begin(
        self, member: Member, stage: Stage, work: Callable[[Member], Coroutine[Any, Any, None]]
    ) -> None:
        """Bring a model to a stage, by work that goes on beside everything else."""
        member.move(stage)

        async def run() -> None:
            try:
                await work(member)
            finally:
                member.task = None
                self._review()

        member.task = asyncio.ensure_future(run())
        self._tasks.add(member.task)
        member.task.add_done_callback(self._tasks.discard)

    async def _read(self, member: Member) -> None:
        try:
            # What doesn't fit into that is mapped from the disk.
            memory = self.options.load.memory or self.options.memory
            load = replace(self.options.load, memory=memory)
            source = replace(member.offer.source, adapters=dict(member.adapters))
            member.starting = await self._launcher.start(source, load)
            member.plan = await member.starting.plan()
        except BaseException as error:
            await self._give_up(member, error)
        else:
            member.move(Stage.READ)

    async def _open(self, member: Member) -> None:
        plan, starting, loop = member.plan, member.starting, asyncio.get_running_loop()
        assert plan is not None
        assert starting is not None
        begun = told = loop.time()
        memory = member.granted if plan.kinds is not None else None
        logger.info(
            "loading %s: %.2f GB of %.2f GB",
            member.name,
            (plan.fixed + member.granted) / 1e9,
            self.options.memory / 1e9,
        )

        def note(progress: LoadProgress) -> None:
            nonlocal told
            member.progress = progress
            if loop.time() - told >= PROGRESS_SECONDS:
                told = loop.time()
                logger.info(
                    "loading %s: %s %.0f %%", member.name, progress.stage, 100 * progress.share
                )

        try:
            running = await starting.open(memory, note)
        except BaseException as error:
            await self._give_up(member, error)
            return
        stay = member.stay = Stay(member, running, loop.time())
        member.starting = member.progress = None
        member.move(Stage.LOADED)
        logger.info("loaded %s in %.1f s", member.name, loop.time() - begun)
        watching = asyncio.ensure_future(self._watch(member, stay))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    async def _unload(self, member: Member) -> None:
        assert member.stay is not None
        try:
            await member.stay.running.stop(0.0)
        except CaudalError as error:  # it is gone all the same
            logger.warning("%s: %s", member.name, error)
        member.unloaded()

    async def _close(self, member: Member) -> None:
        """Give up a model that has been read."""
        if member.starting is not None:
            await member.starting.stop()
        member.unloaded()

    async def _give_up(self, member: Member, error: BaseException) -> None:
        """A model could not be read or opened, or is not to be any more."""
        try:
            if member.starting is not None:
                await member.starting.stop()
        finally:
            member.unloaded()
            if isinstance(error, Exception):
                self._note_failure(member, error)
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise error

    def _note_failure(self, member: Member, error: Exception) -> None:
        """Tell those who wait why, and let nobody try again at once."""
        member.adapters = member.offer.source.adapters  # one that came later may be to blame
        if isinstance(error, ModelNotFoundError) and self._catalogue.grows:
            others = [name for name in names_of(self.members) if name != member.name]
            member.fail(UnknownModelError(member.name, others))
            return
        told = error
        if not isinstance(error, CaudalError):
            logger.exception("loading %s failed", member.name, exc_info=error)
            told = ModelLoadError(member.name, f"{type(error).__name__}: {error}")
        elif isinstance(error, ParameterError):  # of the server's options, not of the request
            told = ModelLoadError(member.name, str(error))
        assert isinstance(told, CaudalError)
        now = asyncio.get_running_loop().time()
        trouble = member.note_trouble(told, str(told), now, first=self.options.first_back_off)
        again = trouble.retry_at - now
        logger.warning("%s (not tried again for %.0f s)", told, again)
        member.fail(told)

    async def _watch(self, member: Member, stay: Stay) -> None:
        """Notice when a model ends that nobody told to."""
        reason = await stay.running.wait_ended()
        if member.stay is not stay or member.stage is not Stage.LOADED:
            return
        now = asyncio.get_running_loop().time()
        if now - stay.since >= LONGEST_BACK_OFF:
            member.trouble = None
        wanted = member.offer.pinned or stay.leases > 0 or bool(member.waiters)
        member.unloaded()
        error = WorkerEndedError(member.name, reason)
        trouble = member.note_trouble(error, error.reason, now, first=0.0)
        logger.warning("%s%s", error, " It is started again." if wanted else "")
        if trouble.retry_at > now:
            member.fail(error)
        if wanted:
            asyncio.get_running_loop().call_at(trouble.retry_at, self._want, member)
        self._review()

    def _want(self, member: Member) -> None:
        """Load a model though no request waits for it."""
        if self._refusal is None and member.stage is Stage.UNLOADED and not member.waiters:
            loop = asyncio.get_running_loop()
            waiter = Waiter(loop.time(), loop.create_future(), counts=False)
            waiter.lease.add_done_callback(_release)
            member.waiters[waiter] = None
            self._review()


def _cancel(task: asyncio.Task[None]) -> None:
    """Have a task end, but begin first: one that never has doesn't put anything away either."""
    asyncio.get_running_loop().call_soon(task.cancel)


def _release(waited: asyncio.Future[Lease]) -> None:
    if not waited.cancelled() and waited.exception() is None:
        waited.result().release()


_STATES: dict[Stage, State] = {
    Stage.UNLOADED: "unloaded",
    Stage.READING: "loading",
    Stage.READ: "loading",
    Stage.OPENING: "loading",
    Stage.LOADED: "loaded",
    Stage.UNLOADING: "unloading",
    Stage.CLOSING: "unloading",
}


def _status(member: Member, now: float) -> ModelStatus:
    stay, plan, trouble = member.stay, member.plan, member.trouble
    state = _STATES[member.stage]
    service = None if stay is None else stay.running.service
    stages = {Stage.READING: "reading its file", Stage.READ: "waiting for memory"}
    stage, progress = stages.get(member.stage, ""), 0.0
    if member.stage is Stage.OPENING:
        stage = "weights" if member.progress is None else member.progress.stage
        progress = 0.0 if member.progress is None else member.progress.share
    keep_until = member.keep_until
    if service is not None:
        max_model_len: int | None = service.max_model_len
    else:
        max_model_len = None if plan is None else plan.max_model_len
    return ModelStatus(
        names=member.offer.names,
        state=state,
        service=service,
        size=member.offer.size,
        created=member.offer.created,
        tasks=None if plan is None else plan.tasks,
        max_model_len=max_model_len,
        memory=member.held,
        sequences=member.granted if stay is None else stay.running.memory.sequences,
        running=member.running,
        waiting=member.waiting,
        expires_in=None if keep_until == math.inf else max(0.0, keep_until - now),
        stage=stage,
        progress=progress,
        process_id=None if stay is None else stay.running.process_id,
        trouble=trouble.reason if trouble is not None and state == "unloaded" else None,
    )


def _seconds_left(
    context: RequestContext, options: LoadOptions, *, generates: bool
) -> float | None:
    """How long a request may still take until it is submitted; None for as long as it does."""
    limits = [context.timeout if context.timeout is not None else options.request_timeout]
    if generates:
        first = context.first_token_timeout
        limits.append(first if first is not None else options.first_token_timeout)
    shortest = min((limit for limit in limits if limit is not None), default=None)
    if shortest is None or context.arrived is None:
        return shortest
    return shortest - (time.monotonic() - context.arrived)
