"""A model's way: it is read, opened, unloaded or given up, and watched while it runs.

Each step is a task of its own, so that it doesn't matter who of those that wait for the model goes
away. Which step is taken when is decided elsewhere: see `Dispatcher`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from caudal.errors import (
    CaudalError,
    ModelNotFoundError,
    UnknownModelError,
    WorkerEndedError,
)
from caudal.fleet.failures import told_to_clients
from caudal.fleet.member import Member, Waiter
from caudal.fleet.options import FleetOptions
from caudal.fleet.policy import Stage
from caudal.fleet.roster import Roster
from caudal.fleet.stay import Lease, Stay
from caudal.logs.request import for_no_request
from caudal.workers.launcher import Launcher, LoadProgress

logger = logging.getLogger("caudal.fleet")

PROGRESS_SECONDS = 10.0
"""Between two words in the log about the same model's loading."""


class Lifecycle:
    """Brings models from one stage to the next.

    Args:
        launcher: Starts them.
        options: The user's choices.
        roster: All of them.
        on_change: Called when one has got to another stage, or is wanted again.
        on_idle: Called with one when the last request on it has ended.
    """

    def __init__(
        self,
        launcher: Launcher,
        options: FleetOptions,
        roster: Roster,
        *,
        on_change: Callable[[], None],
        on_idle: Callable[[Member], None],
    ) -> None:
        self._launcher = launcher
        self._options = options
        self._roster = roster
        self._on_change = on_change
        self._on_idle = on_idle
        self._tasks: set[asyncio.Task[None]] = set()  # of which each ends by itself
        self._watching: set[asyncio.Task[None]] = set()

    def read(self, member: Member) -> None:
        """Begin to read a model's file."""
        self._begin(member, Stage.READING, self._read)

    def open(self, member: Member, granted: int) -> None:
        """Begin to load a model that has been read, with so many bytes for sequences."""
        member.granted = granted
        self._begin(member, Stage.OPENING, self._open)

    def unload(self, member: Member) -> None:
        """Begin to unload a model that is loaded."""
        self._begin(member, Stage.UNLOADING, self._unload)

    def close(self, member: Member) -> None:
        """Begin to give up a model that has been read."""
        self._begin(member, Stage.CLOSING, self._close)

    def interrupt(self, member: Member) -> None:
        """Have a model's reading or loading end soon."""
        if member.task is not None:
            # Not at once: a task that has never begun doesn't put anything away either.
            asyncio.get_running_loop().call_soon(member.task.cancel)

    async def end(self, members: Iterable[Member]) -> None:
        """Have nothing left of models. Safe to call twice, and to be given up half-way."""
        for member in members:
            if member.stage is Stage.LOADED:
                self.unload(member)
            elif member.stage is Stage.READ:
                self.close(member)
            elif member.stage in (Stage.READING, Stage.OPENING):
                self.interrupt(member)
        while self._tasks:
            await asyncio.wait(list(self._tasks))

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
                self._on_change()

        member.task = asyncio.get_running_loop().create_task(run(), context=for_no_request())
        self._tasks.add(member.task)
        member.task.add_done_callback(self._tasks.discard)

    async def _read(self, member: Member) -> None:
        try:
            # What doesn't fit into that is mapped from the disk.
            load = self._options.load_of(member.offer)
            load = replace(load, memory=load.memory or self._options.memory)
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
            self._options.memory / 1e9,
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
        seconds = loop.time() - begun
        history = member.history
        member.history = replace(
            history, loads=history.loads + 1, load_seconds=history.load_seconds + seconds
        )
        stay = member.stay = Stay(running, loop.time(), partial(self._on_idle, member))
        member.starting = member.progress = None
        member.move(Stage.LOADED)
        logger.info("loaded %s in %.1f s", member.name, seconds)
        watching = asyncio.ensure_future(self._watch(member, stay))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    async def _unload(self, member: Member) -> None:
        assert member.stay is not None
        begun = asyncio.get_running_loop().time()
        try:
            await member.stay.running.stop(0.0)
        except CaudalError as error:  # it is gone all the same
            logger.warning("%s: %s", member.name, error)
        history, seconds = member.history, asyncio.get_running_loop().time() - begun
        member.history = replace(
            history, unloads=history.unloads + 1, unload_seconds=history.unload_seconds + seconds
        )
        member.unloaded()

    async def _close(self, member: Member) -> None:
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
        failures = member.history.load_failures + 1
        member.history = replace(member.history, load_failures=failures)
        member.forget_adapters()
        if isinstance(error, ModelNotFoundError) and self._roster.grows:
            others = [name for name in self._roster.own_names if name != member.name]
            member.fail(UnknownModelError(member.name, others))
            return
        told = told_to_clients(member.name, error)
        if not isinstance(error, CaudalError):
            logger.exception("loading %s failed", member.name, exc_info=error)
        now = asyncio.get_running_loop().time()
        trouble = member.note_trouble(told, str(told), now, first=self._options.first_back_off)
        again = trouble.retry_at - now
        logger.warning("%s: %s (not tried again for %.0f s)", member.name, error, again)
        member.fail(told)

    async def _watch(self, member: Member, stay: Stay) -> None:
        """Notice when a model ends that nobody told to."""
        reason = await stay.running.wait_ended()
        if member.stay is not stay or member.stage is not Stage.LOADED:
            return
        now = asyncio.get_running_loop().time()
        if stay.has_proved_itself(now):
            member.trouble = None
        member.history = replace(member.history, crashes=member.history.crashes + 1)
        wanted = member.offer.pinned or stay.leases > 0 or bool(member.waiters)
        member.unloaded()
        error = WorkerEndedError(member.name, reason)
        trouble = member.note_trouble(error, error.reason, now, first=0.0)
        logger.warning("%s%s", error, " It is started again." if wanted else "")
        if trouble.retry_at > now:
            member.fail(error)
        if wanted:
            asyncio.get_running_loop().call_at(trouble.retry_at, self._want, member)
        self._on_change()

    def _want(self, member: Member) -> None:
        """Have a model loaded though no request waits for it."""
        if member.stage is Stage.UNLOADED and not member.waiters:
            loop = asyncio.get_running_loop()
            waiter = Waiter(loop.time(), loop.create_future(), counts=False)
            waiter.lease.add_done_callback(_release)
            member.waiters[waiter] = None
            self._on_change()


def _release(waited: asyncio.Future[Lease]) -> None:
    if not waited.cancelled() and waited.exception() is None:
        waited.result().release()
