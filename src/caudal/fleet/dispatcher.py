"""Who waits for a model, and what is begun for them.

Everything here happens on one event loop, and nothing is waited for while it is decided. Whoever
asks waits for a `Lease`; `decide` says what is to be done, and `Lifecycle` does it.
"""

from __future__ import annotations

import asyncio
import logging
import math

from caudal.engine.shares import share_of_queue
from caudal.errors import (
    EngineDeadError,
    ModelTooLargeError,
    ModelUnavailableError,
    QueueFullError,
    RequestTimeoutError,
)
from caudal.fleet.lifecycle import Lifecycle
from caudal.fleet.member import Member, Waiter
from caudal.fleet.options import FleetOptions
from caudal.fleet.policy import MemoryNeed, Moves, Stage, decide
from caudal.fleet.roster import Roster
from caudal.fleet.stay import Lease
from caudal.logs.request import for_no_request
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.workers.launcher import Launcher

logger = logging.getLogger("caudal.fleet")

MOST_TURNS = 10_000
"""Tenants whose last turn is remembered."""


class Dispatcher:
    """See the module.

    Args:
        roster: All models.
        launcher: Starts them.
        options: The user's choices.

    Attributes:
        refusal: Why nothing is begun any more; None as long as it is.
    """

    def __init__(self, roster: Roster, launcher: Launcher, options: FleetOptions) -> None:
        self.refusal: str | None = None
        self._roster = roster
        self._options = options
        self._bounds = options.bounds
        self._timer: asyncio.TimerHandle | None = None
        self._turns: dict[str | None, int] = {}
        self._opened = 0
        self._lifecycle = Lifecycle(
            launcher, options, roster, on_change=self.review, on_idle=self._on_idle
        )

    # Waiting

    async def wait(
        self,
        member: Member,
        seconds: float | None = None,
        limit: str = "timeout",
        *,
        context: RequestContext = NO_CONTEXT,
        modest: bool = False,
    ) -> Lease:
        """Wait until a model takes requests.

        Args:
            member: The model.
            seconds: How long at most; None for as long as it takes.
            limit: The name of the limit that says so.
            context: Whose request it is, and how many more of theirs may wait.
            modest: See `Waiter`.

        Raises:
            QueueFullError: Too many wait for it.
            RequestTimeoutError: Time ran out.
            CaudalError: It can't be loaded, or not now.
        """
        loop, trouble = asyncio.get_running_loop(), member.trouble
        if trouble is not None and member.stage is Stage.UNLOADED:
            now = loop.time()
            if now < trouble.retry_at:
                raise trouble.told(now)
        self._check_room(member, context)
        waiter = Waiter(
            loop.time(),
            loop.create_future(),
            tenant=context.tenant,
            weight=context.weight,
            modest=modest,
        )
        member.waiters[waiter] = None
        member.sent_away = False
        self.review()
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                return await waiter.lease
        except BaseException as error:
            self._leave(member, waiter)
            if isinstance(error, TimeoutError) and timer.expired():
                raise RequestTimeoutError(
                    f"The request timed out: the model {member.name!r} was still being loaded, or "
                    f"waiting for its turn, after {seconds:.1f} s.",
                    limit,
                ) from None
            raise

    def _check_room(self, member: Member, context: RequestContext) -> None:
        """Raise `QueueFullError` where as many wait for a model as may, as in an engine's queue."""
        most, own_most = max(1, self._options.max_waiting), context.max_waiting
        full = member.waiting >= most
        if not full and own_most is None:
            return
        tenant = context.tenant
        waiters = [each for each in member.waiters if each.counts]
        own = sum(each.tenant == tenant for each in waiters)
        if own_most is not None and own >= max(1, own_most):
            raise QueueFullError(own_most, 1, f"Your queue of {member.name}", limit="max_waiting")
        weights = {each.tenant: each.weight for each in waiters}
        if full and own >= share_of_queue(most, tenant, context.weight, weights):
            raise QueueFullError(self._options.max_waiting, 1, f"The queue of {member.name}")

    def _leave(self, member: Member, waiter: Waiter) -> None:
        """Somebody waits no more; what they were given meanwhile is given back."""
        lease = waiter.lease
        if lease.done() and not lease.cancelled() and lease.exception() is None:
            lease.result().release()
        if waiter in member.waiters:
            del member.waiters[waiter]
            self.review()

    # Sending away

    async def unload(self, member: Member) -> None:
        """Unload a model once nothing runs on it, and wait until it is; see `Fleet.unload`."""
        member.sent_away = True
        if member.stage in (Stage.READING, Stage.READ, Stage.OPENING):
            await self._stop_loading(member)
        elif member.stay is not None:
            member.told_to_go = True
            stay = member.stay
            self.review()
            while member.stay is stay:
                await member.changed.wait()

    async def _stop_loading(self, member: Member) -> None:
        member.fail(ModelUnavailableError(member.name, "was told to stop while it was loaded"))
        if member.task is None:
            self.review()  # it has been read, and nobody waits for it any more
        else:
            self._lifecycle.interrupt(member)
        if member.task is not None:  # not until a stage: it may be loaded for others right away
            await asyncio.wait([member.task])

    async def shutdown(self) -> None:
        """End everything that runs. Safe to call twice, and to be given up half-way."""
        self.refusal = "The server is shutting down."
        if self._timer is not None:
            self._timer.cancel()
        for member in self._roster.members:
            member.fail(EngineDeadError(self.refusal))
        await self._lifecycle.end(self._roster.members)

    # What is to be done, and beginning it

    def _on_idle(self, member: Member) -> None:
        """The last request on a model has ended; mostly there is nothing to be done."""
        look_at = math.inf if self._timer is None else self._timer.when()
        if member.keep_until < look_at or member.told_to_go or self._somebody_waits():
            self.review()

    def _somebody_waits(self) -> bool:
        return any(member.waiters for member in self._roster.members)

    def review(self) -> None:
        """Look at everything, and begin what is to be done."""
        if self.refusal is not None:
            return
        members, now = self._roster.members, asyncio.get_running_loop().time()
        moves = decide(
            [each.state(self._need(each), self._turns) for each in members], self._bounds, now
        )
        by_name = self._roster.by_own_name
        for name in moves.refuse:
            self._refuse(by_name(name))
        for name in moves.put_off:
            by_name(name).fail(
                ModelUnavailableError(name, "has no room beside those that are loaded")
            )
        for name in (*moves.refuse, *moves.put_off, *moves.give_up):
            self._lifecycle.close(by_name(name))
        for name in moves.read:
            self._lifecycle.read(by_name(name))
        for name, granted in moves.open.items():
            self._note_turn(by_name(name))
            self._lifecycle.open(by_name(name), granted)
        for name, reason in moves.unload.items():
            logger.info("unloading %s: %s", name, reason)
            self._lifecycle.unload(by_name(name))
        self._admit(moves)
        self._look_again(moves.wake_at)

    def _note_turn(self, member: Member) -> None:
        """A model is loaded: that is a turn of all tenants that wait for it."""
        self._opened += 1
        if len(self._turns) > MOST_TURNS:
            self._turns.clear()
        self._turns |= dict.fromkeys(member.asked_for_by, self._opened)

    def _admit(self, moves: Moves) -> None:
        """Let those in who wait for what is there."""
        for member in self._roster.members:
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
            self._timer = asyncio.get_running_loop().call_at(
                time, self.review, context=for_no_request()
            )

    def _need(self, member: Member) -> MemoryNeed | None:
        return None if member.plan is None else self._options.need(member.offer, member.plan)

    def _refuse(self, member: Member) -> None:
        assert member.plan is not None
        need = self._options.need(member.offer, member.plan)
        pinned = [each for each in self._roster.members if each.offer.pinned and each.held]
        kept = sum(each.held for each in pinned)
        if need.least_bytes + kept > self._options.memory:
            member.forget_adapters()
            member.fail(
                ModelTooLargeError(member.name, need.least_bytes, self._options.memory, kept)
            )
        else:
            names = " and ".join(each.name for each in pinned)
            reason = f"can't be loaded: {names}, to be kept loaded, take all places that there are"
            member.fail(ModelUnavailableError(member.name, reason))
