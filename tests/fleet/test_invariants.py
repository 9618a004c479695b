"""The fleet, whatever happens: budgets hold, busy models stay, nobody waits for ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caudal.errors import CaudalError, ModelLoadError, ModelTooLargeError
from caudal.fleet.fleet import Fleet
from caudal.fleet.options import FleetOptions
from caudal.service.context import RequestContext
from support.fake_launcher import FakeLauncher, FakeModel, Offered, offers
from support.virtual_time import run_virtually

NAMES = "abcde"
MEMORY = 40
TURN = 10.0
LONGEST = 20.0
"""Seconds that a request runs at most."""

SLOWEST = 2 * 0.1 + 3.0
"""Seconds that reading, loading and unloading a model take at most together, besides rounding."""


@dataclass
class Story:
    """What happens: models, and what is done to them when.

    Attributes:
        models: What they are like.
        max_loaded: Most of them at a time.
        events: Pauses, and what is done after each: to which model, and with what number.
    """

    models: dict[str, FakeModel]
    max_loaded: int | None
    events: list[tuple[float, str, str, float]] = field(default_factory=list)


MODELS = st.builds(
    FakeModel,
    fixed=st.integers(1, 45),
    least=st.integers(0, 5),
    usual=st.integers(5, 20),
    open_seconds=st.sampled_from([0.0, 0.5, 3.0]),
)

EVENTS = st.tuples(
    st.sampled_from([0.0, 0.0, 0.05, 0.7, 4.0, 30.0]),
    st.sampled_from(
        ["ask", "ask", "ask", "ask", "burst", "leave", "hurry", "crash", "unload", "break", "mend"]
    ),
    st.sampled_from(NAMES),
    st.sampled_from([0.0, 0.2, 3.0, LONGEST]),
)

STORIES = st.builds(
    Story,
    models=st.fixed_dictionaries(dict.fromkeys(NAMES, MODELS)),
    max_loaded=st.sampled_from([None, 1, 2, 3]),
    events=st.lists(EVENTS, min_size=5, max_size=40),
)


class Run:
    """A story as it goes."""

    def __init__(self, story: Story) -> None:
        self.launcher = FakeLauncher(story.models)
        self.fleet = Fleet(
            Offered(offers(NAMES)),
            self.launcher,
            FleetOptions(memory=MEMORY, max_loaded=story.max_loaded, keep_alive=60, turn=TURN),
        )
        self.story = story
        self.asked: list[asyncio.Task[None]] = []
        self.waits: list[float] = []

    async def go(self) -> None:
        await self.fleet.start()
        unloading = []
        for pause, event, name, number in self.story.events:
            await asyncio.sleep(pause)
            match event:
                case "ask":
                    self.ask(name, number)
                case "burst":
                    for _ in range(8):
                        self.ask(name, number)
                case "leave" if self.asked:
                    self.asked[int(number * 7) % len(self.asked)].cancel()
                case "hurry":
                    self.ask(name, number, RequestContext(timeout=2.0))
                case "crash" if name in self.launcher.loaded:
                    self.launcher.loaded[name].crash("has crashed")
                case "unload":
                    unloading.append(asyncio.ensure_future(self.fleet.unload(name)))
                case "break":
                    self.launcher.models[name].open_error = ModelLoadError(name, "is broken")
                case "mend":
                    self.launcher.models[name].open_error = None
            self.check()
        # Every request ends, and every order is carried out.
        await asyncio.wait_for(asyncio.gather(*self.asked, return_exceptions=True), 10_000)
        await asyncio.wait_for(asyncio.gather(*unloading), 10_000)
        self.check()
        for task in self.asked:
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, CaudalError), repr(error)
        await asyncio.sleep(1000)  # all have been idle for long
        assert self.launcher.alive == []
        await self.fleet.shutdown()
        assert self.launcher.bytes == 0

    def ask(self, name: str, seconds: float, context: RequestContext | None = None) -> None:
        self.asked.append(asyncio.ensure_future(self._ask(name, seconds, context)))

    async def _ask(self, name: str, seconds: float, context: RequestContext | None) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            found = await self.fleet.resolve(name, context=context or RequestContext())
        except ModelTooLargeError:
            model = self.story.models[name]
            assert model.fixed + min(model.least, model.usual) > MEMORY
            raise
        finally:
            # Each of the others may have its turn before, once, with all that it takes to load.
            assert loop.time() - begun <= len(NAMES) * (TURN + LONGEST + SLOWEST)
        running = self.launcher.loaded.get(name)
        try:
            await asyncio.sleep(seconds)
            assert running is None or not running.stopping, "it was unloaded under a request"
        finally:
            found.lease.release()

    def check(self) -> None:
        assert self.launcher.most_bytes <= MEMORY
        if self.story.max_loaded is not None:
            assert len(self.launcher.loaded) <= self.story.max_loaded


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(STORIES)
def test_whatever_happens(story: Story):
    run_virtually(Run(story).go())
