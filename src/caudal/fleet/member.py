"""One model of the fleet: how far it is, who waits for it, and what has gone wrong with it."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caudal.errors import CaudalError, UnknownModelError, WorkerEndedError
from caudal.fleet.offer import ModelOffer
from caudal.fleet.policy import HOLDS_MEMORY, MemoryNeed, ModelState, Stage
from caudal.fleet.stay import LONGEST_BACK_OFF, Lease, Stay
from caudal.service.models import NO_HISTORY
from caudal.workers.launcher import (
    LoadProgress,
    ModelPlan,
    StartingModel,
)

logger = logging.getLogger("caudal.fleet")


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """Somebody who waits until a model is loaded.

    Attributes:
        arrived: Since when, on the event loop's clock.
        lease: What is waited for.
        counts: Whether it is a request, for the limit of those that wait.
        tenant: Whose.
        weight: That tenant's.
        modest: It wants nobody to go for it.
    """

    arrived: float
    lease: asyncio.Future[Lease]
    counts: bool = True
    tenant: str | None = None
    weight: float = 1.0
    modest: bool = False


@dataclass(slots=True)
class Trouble:
    """Why a model isn't there, and when it may be tried again.

    Attributes:
        error: What who asks for it until then is told.
        reason: The same in short.
        retry_at: When that is, on the event loop's clock.
        times: How often in a row it has failed.
    """

    error: CaudalError
    reason: str
    retry_at: float
    times: int

    def told(self, now: float) -> CaudalError:
        """What who asks for it now is told."""
        if isinstance(self.error, WorkerEndedError):
            seconds = max(1, math.ceil(self.retry_at - now))
            return WorkerEndedError(self.error.model, self.error.reason, seconds)
        return copy.copy(self.error)


class Member:
    """A model of the fleet.

    Args:
        offer: What it is.
        keep_alive: Seconds that it stays loaded while nobody asks anything of it.

    Attributes:
        offer: What it is.
        keep_alive: As above; requests may change it.
        adapters: Those that it begins with when it is loaded next, by name, with their paths.
        stage: How far it is.
        moved_at: When it came so far, on the event loop's clock; 0 before anything has happened.
        plan: What it takes, once its file has been read.
        starting: Its process, before it is loaded.
        granted: Bytes that it was given for sequences.
        progress: How far its loading is.
        stay: It, loaded.
        closed: It takes no new requests.
        told_to_go: Somebody asked for it to be unloaded, and it is still there.
        sent_away: Somebody asked for that, and nobody has asked for it to be there since.
        deleted: There is no such model any more; what runs on it ends.
        waiters: Who waits for it, the first first.
        trouble: What went wrong last.
        task: What brings it from one stage to the next.
        changed: Set, and replaced, when its stage changes.
        history: What has become of it so far.
    """

    def __init__(self, offer: ModelOffer, keep_alive: float) -> None:
        self.offer = offer
        self.default_keep_alive = self.keep_alive = keep_alive
        self.adapters: Mapping[str, str] = offer.source.adapters
        self.stage = Stage.UNLOADED
        self.moved_at = 0.0
        self.plan: ModelPlan | None = None
        self.starting: StartingModel | None = None
        self.granted = 0
        self.progress: LoadProgress | None = None
        self.stay: Stay | None = None
        self.closed = False
        self.told_to_go = False
        self.sent_away = False
        self.deleted = False
        self.waiters: dict[Waiter, None] = {}
        self.trouble: Trouble | None = None
        self.task: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        self.history = NO_HISTORY

    @property
    def name(self) -> str:
        """Its own name."""
        return self.offer.name

    @property
    def open_stay(self) -> Stay | None:
        """Where a new request may run at once; None where it has to wait, or nobody knows."""
        if self.stage is not Stage.LOADED or self.closed or self.waiters:
            return None
        return self.stay

    @property
    def healthy(self) -> bool:
        """Whether it runs, or is on its way and nothing has gone wrong."""
        if self.stay is None:
            return self.trouble is None
        return self.stay.running.service.healthy

    @property
    def running(self) -> int:
        """Requests that run."""
        return 0 if self.stay is None else self.stay.leases

    @property
    def waiting(self) -> int:
        """Requests that wait until it is loaded."""
        return sum(waiter.counts for waiter in self.waiters)

    @property
    def keep_until(self) -> float:
        """When it goes, on the event loop's clock, if nothing is asked of it any more."""
        stay = self.stay
        return math.inf if stay is None or stay.leases else stay.idle_since + self.keep_alive

    @property
    def held(self) -> int:
        """Bytes that it has, with its adapters."""
        if self.stage not in HOLDS_MEMORY:
            return 0
        if self.stay is not None:
            running = self.stay.running
            return running.memory.bytes + sum(each.bytes for each in running.service.adapters)
        assert self.plan is not None
        return self.plan.fixed + self.granted

    @property
    def asked_for_by(self) -> dict[str | None, float]:
        """The tenants that wait for it, and since when."""
        since: dict[str | None, float] = {}
        for waiter in self.waiters:
            since.setdefault(waiter.tenant, waiter.arrived)
        return since

    def state(self, need: MemoryNeed | None, turns: Mapping[str | None, int]) -> ModelState:
        """It, as far as it matters for what is to be done.

        Args:
            need: What it takes.
            turns: When each tenant's last turn was: see `ModelState.asked_for_by`.
        """
        stay = self.stay
        return ModelState(
            name=self.name,
            stage=self.stage,
            need=need,
            held=self.held,
            running=self.running,
            oldest=next(iter(self.waiters)).arrived if self.waiters else None,
            asked_for_by={
                tenant: (since, turns.get(tenant, 0)) for tenant, since in self.asked_for_by.items()
            },
            since=0.0 if stay is None else stay.since,
            reading_since=self.moved_at if self.stage is Stage.READING else None,
            idle_since=None if stay is None or stay.leases else stay.idle_since,
            keep_until=self.keep_until,
            pinned=self.offer.pinned,
            told_to_go=self.told_to_go,
            modest=all(waiter.modest for waiter in self.waiters),
        )

    def current_adapters(self) -> Mapping[str, str]:
        """The adapters that it has, or will have, by name, with their paths."""
        if self.stay is None:
            return self.adapters
        return {each.name: each.path for each in self.stay.running.service.adapters}

    def forget_adapters(self) -> None:
        """Begin with those of the start: one that came later may be why it can't be loaded."""
        self.adapters = self.offer.source.adapters

    def move(self, stage: Stage) -> None:
        """It has got further, or back."""
        self.stage = stage
        self.moved_at = asyncio.get_running_loop().time()
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def unloaded(self) -> None:
        """Nothing is left of it. Adapters that it got while it was loaded come back with it."""
        self.adapters = self.current_adapters()
        self.starting = self.stay = self.progress = None
        self.granted = 0
        self.closed = self.told_to_go = False
        self.keep_alive = self.default_keep_alive
        self.move(Stage.UNLOADED)

    def become(self, offer: ModelOffer, keep_alive: float) -> bool:
        """Be what it is now: it may have been made anew, deleted and made again, or have other
        options, which hold when it is loaded next.

        Args:
            offer: What it is.
            keep_alive: See `Member`.

        Returns:
            Whether what is loaded, or being loaded, is another and has to go. What runs on it ends
            first, and who comes meanwhile waits for what takes its place.
        """
        before, changed = self.offer, offer.version != self.offer.version
        self.offer = offer
        if self.keep_alive == self.default_keep_alive:
            self.keep_alive = keep_alive
        self.default_keep_alive = keep_alive
        self.deleted = False
        if not changed:
            self._take_options(before)
            return False
        self.trouble = None
        self.adapters = offer.source.adapters
        if self.stage is Stage.UNLOADED:
            self.plan = None
            return False
        self.told_to_go = True
        return True

    def _take_options(self, before: ModelOffer) -> None:
        """Nothing of it has changed but how it is to run."""
        if (self.offer.load, self.offer.source) == (before.load, before.source):
            return
        if self.adapters == before.source.adapters:
            self.adapters = self.offer.source.adapters
        if self.stage is Stage.UNLOADED:
            self.plan = self.trouble = None
        else:
            logger.info("%s: its new options hold when it is loaded next", self.name)

    def delete(self, others: Sequence[str]) -> None:
        """There is no such model any more.

        Args:
            others: Names of those that there are.
        """
        self.deleted = self.told_to_go = True
        self.fail(UnknownModelError(self.name, others))

    def fail(self, error: CaudalError) -> None:
        """Tell all who wait that they wait in vain."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.lease.done():
                waiter.lease.set_exception(copy.copy(error))  # each has a traceback of its own

    def note_trouble(self, error: CaudalError, reason: str, now: float, *, first: float) -> Trouble:
        """Remember what went wrong, and until when it isn't tried again.

        Args:
            error: What who asks meanwhile is told.
            reason: The same in short.
            now: The time.
            first: Seconds to wait after the first failure; then 1, 2, 4, and so on.
        """
        times = 1 if self.trouble is None else self.trouble.times + 1
        seconds = first if times == 1 else min(LONGEST_BACK_OFF, 2.0 ** min(times - 2, 10))
        self.trouble = Trouble(error, reason, now + seconds, times)
        return self.trouble
