"""The models that there are: found by name, loaded when they are asked for, unloaded for others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from caudal.errors import (
    EngineDeadError,
    ModelUnavailableError,
    UnknownModelError,
    UnsupportedTaskError,
)
from caudal.fleet.catalogue import Catalogue
from caudal.fleet.dispatcher import Dispatcher
from caudal.fleet.member import Member
from caudal.fleet.options import FleetOptions
from caudal.fleet.roster import Roster
from caudal.fleet.status import status_of
from caudal.fleet.stay import Lease
from caudal.loading.options import LoadOptions
from caudal.service.adapted import AdaptedService
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.models import Found, Models, ModelStatus
from caudal.service.service import Service
from caudal.workers.launcher import Launcher

if TYPE_CHECKING:
    from caudal.models.program import Task

logger = logging.getLogger("caudal.fleet")


class Fleet(Models):
    """See the module.

    Args:
        catalogue: Which models there are.
        launcher: Starts them.
        options: The user's choices.
    """

    def __init__(self, catalogue: Catalogue, launcher: Launcher, options: FleetOptions) -> None:
        self.options = options
        self._roster = Roster(catalogue, options.keep_alive, self._on_outdated)
        self._dispatcher = Dispatcher(self._roster, launcher, options)
        self._started = False

    def _on_outdated(self) -> None:
        self._dispatcher.review()

    # What there is

    @property
    def ready(self) -> bool:
        """See `Models`."""
        return self._started

    @property
    def healthy(self) -> bool:
        """Whether what is to stay is loaded and runs; others may come and go."""
        return self._dispatcher.refusal is None and all(
            member.healthy
            for member in self.members
            if member.offer.pinned and not member.sent_away and not member.deleted
        )

    @property
    def memory(self) -> int:
        """See `Models`."""
        return self.options.memory

    @property
    def room(self) -> int:
        """See `Models`."""
        return max(0, self.memory - sum(member.held for member in self.members))

    @property
    def keep_alive(self) -> float:
        """Seconds that models stay where no request says otherwise."""
        return self._roster.keep_alive

    @property
    def serves_one(self) -> bool:
        """See `Models`."""
        return self._roster.serves_one

    @property
    def names(self) -> Sequence[str]:
        """See `Models`."""
        return self._roster.names

    @property
    def members(self) -> list[Member]:
        """All models, as they were when somebody looked last."""
        return self._roster.members

    @property
    def services(self) -> list[Service]:
        """See `Models`."""
        return [member.stay.running.service for member in self.members if member.stay is not None]

    async def statuses(self) -> Sequence[ModelStatus]:
        """See `Models`."""
        now = asyncio.get_running_loop().time()
        return [status_of(member, now) for member in await self.refresh()]

    async def status(self, name: str) -> ModelStatus:
        """See `Models`."""
        return status_of(await self._member(name), asyncio.get_running_loop().time())

    async def refresh(self) -> list[Member]:
        """All models, as they are now.

        Raises:
            StoreError: That can't be known.
        """
        return await self._roster.refresh()

    # Finding models

    def loaded(self, name: str | None) -> Service | None:
        """See `Models`."""
        member = self._roster.known(name)
        return None if member is None or member.stay is None else member.stay.running.service

    def find_now(
        self, name: str | None, task: Task | None = None, *, keep_alive: float | None = None
    ) -> Found | None:
        """See `Models`; raises nothing that `resolve` wouldn't."""
        self._roster.look_soon()
        member = self._roster.known(name)
        stay = None if member is None else member.open_stay
        if member is None or stay is None or self._dispatcher.refusal is not None:
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
            generates = task == "generate"
            load = self.options.load_of(member.offer)
            seconds, limit = _seconds_left(context, load, generates=generates)
            lease = await self._dispatcher.wait(member, seconds, limit, context=context)
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
            if name and self._roster.named(name) is None:
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
        if self._dispatcher.refusal is not None:
            raise EngineDeadError(self._dispatcher.refusal)
        return await self._roster.find(name)

    # Loading and unloading on demand

    async def load(self, name: str) -> None:
        """See `Models`."""
        member = await self._member(name)
        if member.stay is None:
            (await self._dispatcher.wait(member)).release()

    async def unload(self, name: str) -> None:
        """See `Models`.

        What comes for it meanwhile waits, and is what it is loaded for again. One that is being
        loaded isn't any more, and who waits for it is told.
        """
        await self._dispatcher.unload(await self._member(name))

    async def start(self, names: Sequence[str] = ()) -> None:
        """See which models there are, and load some, those that fit beside each other.

        Args:
            names: Those to load, the first first.

        Raises:
            CaudalError: One of them can't be loaded.
        """
        await self.refresh()
        for place, name in enumerate(names):
            member = await self._member(name)
            try:
                (await self._dispatcher.wait(member, modest=place > 0)).release()
            except ModelUnavailableError as error:
                logger.info("%s It is loaded when it is asked for.", error)
        self._started = True

    async def change(self, catalogue: Catalogue) -> None:
        """Have other models: what runs on those that aren't there any more ends, and what is said
        of others anew holds when they are loaded next.

        Raises:
            StoreError: It can't be known which there are.
        """
        await self._roster.change(catalogue)

    async def shutdown(self) -> None:
        """End everything that runs. Safe to call twice, and to be given up half-way."""
        self._roster.close()
        await self._dispatcher.shutdown()


def _seconds_left(
    context: RequestContext, options: LoadOptions, *, generates: bool
) -> tuple[float | None, str]:
    """How long a request may still take until it is submitted, and which limit says so; None for as
    long as it does.
    """
    shortest, limit = context.time_allowed(
        options.request_timeout, options.first_token_timeout, generates=generates
    )
    if shortest is None or context.arrived is None:
        return shortest, limit
    return shortest - (time.monotonic() - context.arrived), limit
