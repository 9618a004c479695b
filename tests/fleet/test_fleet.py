"""The fleet: what is loaded and unloaded when, in virtual time, with made-up models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from caudal.errors import (
    AdapterNotFoundError,
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
from caudal.fleet.catalogue import GivenModels
from caudal.fleet.durations import FOREVER
from caudal.fleet.fleet import Fleet
from caudal.fleet.options import FleetOptions
from caudal.fleet.policy import Stage
from caudal.service.context import RequestContext
from caudal.workers.messages import RemoteFailureError, error_data, raised
from support.fake_launcher import FakeLauncher, FakeModel, Offered, offers
from support.virtual_time import run_virtually


class Rig:
    """A fleet of made-up models."""

    def __init__(self, models: dict[str, FakeModel], memory: int = 30, **options: Any) -> None:
        pinned = options.pop("pinned", False)
        self.launcher = FakeLauncher(models)
        self.catalogue = Offered(offers(list(models), pinned=pinned))
        self.fleet = Fleet(
            self.catalogue,
            self.launcher,
            FleetOptions(memory=memory, **options),
        )

    @property
    def loaded(self) -> set[str]:
        return set(self.launcher.loaded)

    async def ask(self, name: str, seconds: float = 0.0, **more: Any) -> float:
        """A request that takes so long once its model is there; returns how long that took."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        found = await self.fleet.resolve(name, **more)
        waited = loop.time() - begun
        await asyncio.sleep(seconds)
        assert not self.launcher.loaded[name].stopping, "it was unloaded under a request"
        found.lease.release()
        return waited


@asynccontextmanager
async def rig(models: dict[str, FakeModel], memory: int = 30, **options: Any) -> AsyncIterator[Rig]:
    made = Rig(models, memory, **options)
    await made.fleet.start()
    yield made
    await made.fleet.shutdown()
    assert made.launcher.alive == []
    assert made.launcher.bytes == 0
    assert made.launcher.most_bytes <= memory


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtually(test())

    run.__name__ = test.__name__
    return run


@virtually
async def test_ten_first_requests_load_once_and_those_who_leave_take_nobody_with_them():
    async with rig({"a": FakeModel()}) as made:
        asking = [asyncio.ensure_future(made.ask("a", 1)) for _ in range(10)]
        await asyncio.sleep(0.5)
        for each in asking[:4]:
            each.cancel()
        assert await asyncio.gather(*asking[4:]) == [pytest.approx(1.1)] * 6
        assert made.launcher.started == ["a"]
        assert await made.ask("a") == 0


@virtually
async def test_a_models_stay_ends_as_long_after_its_last_request_as_was_said_last():
    async with rig({"a": FakeModel()}, keep_alive=300) as made:
        await made.ask("a", 50)
        await asyncio.sleep(299)
        await made.ask("a")
        await asyncio.sleep(299)
        assert made.loaded == {"a"}
        await asyncio.sleep(2)
        assert made.loaded == set()
        await made.ask("a", keep_alive=10)
        await made.ask("a")
        await asyncio.sleep(11)
        assert made.loaded == set()
        await made.ask("a", keep_alive=FOREVER)
        await asyncio.sleep(1e6)
        assert made.loaded == {"a"}
        asking = asyncio.ensure_future(made.ask("a", 5))
        await asyncio.sleep(1)
        await made.ask("a", keep_alive=0)
        await asking
        await asyncio.sleep(0.5)
        assert made.loaded == set()


@virtually
async def test_the_least_recently_used_idle_model_makes_room():
    async with rig({"a": FakeModel(), "b": FakeModel(), "c": FakeModel()}) as made:
        await made.ask("a")
        await made.ask("b")
        await asyncio.sleep(1)
        await made.ask("a")
        await asyncio.sleep(5)
        await made.ask("c")
        assert made.loaded == {"a", "c"}
        assert await made.ask("a") == 0


@virtually
async def test_a_busy_model_is_left_alone_and_the_other_goes():
    async with rig({"a": FakeModel(), "b": FakeModel(), "c": FakeModel()}) as made:
        busy = asyncio.ensure_future(made.ask("a", 1000))
        await asyncio.sleep(10)
        await made.ask("b")
        await asyncio.sleep(5)
        assert await made.ask("c") < 2
        assert made.loaded == {"a", "c"}
        await busy


@virtually
async def test_memory_for_sequences_gives_way_before_other_models_do():
    models = {"a": FakeModel(usual=20), "b": FakeModel(usual=16), "c": FakeModel(usual=16)}
    async with rig(models, memory=40) as made:
        await made.ask("a")
        assert made.launcher.loaded["a"].granted == 10  # a quarter of the whole
        await made.ask("b")
        assert made.launcher.loaded["b"].granted == 10
        assert made.loaded == {"a", "b"}
        await asyncio.sleep(5)
        await made.ask("c")
        assert made.loaded == {"b", "c"}


@virtually
async def test_two_models_that_do_not_fit_together_take_turns_with_all_that_has_come():
    async with rig({"a": FakeModel(fixed=20), "b": FakeModel(fixed=20)}, turn=10) as made:
        waits: dict[str, list[float]] = {"a": [], "b": []}

        async def client(name: str) -> None:
            while asyncio.get_running_loop().time() < 300:
                waits[name].append(await made.ask(name, 0.3))
                await asyncio.sleep(0.01)

        await asyncio.gather(*[client(name) for name in "ababab"])
        # A turn each, and what loading takes: not a load for every request.
        assert 20 < len(made.launcher.started) < 40
        for name in "ab":
            assert len(waits[name]) > 1000
            assert max(waits[name]) < 10 + 4


@virtually
async def test_a_model_that_is_asked_all_the_time_does_not_starve_another():
    models = {name: FakeModel(fixed=20) for name in "abc"}
    async with rig(models, turn=10) as made:
        loop, asked = asyncio.get_running_loop(), []

        async def flood() -> None:
            while loop.time() < 100:
                asked.append(asyncio.ensure_future(made.ask("a", 3)))
                await asyncio.sleep(0.5)

        flooding = asyncio.ensure_future(flood())
        await asyncio.sleep(20)
        first = asyncio.ensure_future(made.ask("c", 1))
        await asyncio.sleep(1)
        b, c = await asyncio.gather(made.ask("b", 1), first)
        assert c < 10 + 3 + 2
        assert c < b < 2 * (10 + 3 + 2)
        await flooding
        await asyncio.gather(*asked)


@virtually
async def test_what_never_fits_is_refused_at_once_with_numbers():
    models = {"a": FakeModel(), "large": FakeModel(fixed=2 * 10**9, least=10**7, usual=10**8)}
    async with rig(models, memory=10**9) as made:
        await made.ask("a")
        with pytest.raises(ModelTooLargeError, match=r"'large' needs 2\.01 GB .* have 1\.00 GB"):
            await made.ask("large")
        assert made.loaded == {"a"}


@virtually
async def test_a_failed_load_is_told_to_all_and_not_tried_in_a_storm():
    broken = FakeModel(open_error=ModelLoadError("b", "tensor x is missing"))
    async with rig({"b": broken}) as made:
        asking = [made.ask("b") for _ in range(10)]
        failed = await asyncio.gather(*asking, return_exceptions=True)
        assert all("tensor x is missing" in str(error) for error in failed)
        assert len(set(map(id, failed))) == 10
        assert made.launcher.started == ["b"]
        for seconds, times in ((0, 1), (1.1, 2), (0.5, 2), (0.6, 3), (1.1, 3), (1, 4)):
            await asyncio.sleep(seconds)
            with pytest.raises(ModelLoadError, match="tensor x is missing"):
                await made.ask("b")
            assert len(made.launcher.started) == times
        broken.open_error = None
        await asyncio.sleep(5)
        await made.ask("b")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModelLoadError("/secret/b", "tensor x is missing"), "tensor x is missing"),
        (ModelLoadError("/secret/2.gguf", "it ends early"), "2.gguf: it ends early"),
        (AdapterNotFoundError("sql", "/secret/sql"), "there is no file of its adapter 'sql'"),
        (ModelNotFoundError("there is no file /secret/b"), "its files are not there any more"),
        (ParameterError("kv_memory", "kv_memory is too small"), "kv_memory is too small"),
        (MemoryError(), "there is not enough memory"),
        (FileNotFoundError(2, "No such file or directory", "/secret"), "No such file or directory"),
    ],
)
@pytest.mark.parametrize("crosses", [False, True])
def test_clients_are_told_what_is_wrong_with_a_model_and_not_where_it_is(
    error: Exception, words: str, crosses: bool, caplog: pytest.LogCaptureFixture
):
    if crosses:
        error = raised(error_data(error))
        words += " (in the model's process)" if isinstance(error, RemoteFailureError) else ""
    launcher = FakeLauncher({"b": FakeModel(open_error=error)})

    async def ask() -> str:
        fleet = Fleet(GivenModels(offers(["b"])), launcher, FleetOptions(memory=30))
        with pytest.raises(ModelLoadError) as told:
            await fleet.resolve("b")
        await fleet.shutdown()
        return str(told.value)

    assert run_virtually(ask()) == f"cannot load b: {words}"
    assert f"b: {error} (not tried again for 1 s)" in caplog.messages


@virtually
async def test_a_model_that_ends_is_started_again_later_each_time():
    async with rig({"a": FakeModel(open_seconds=0.2)}, pinned=True) as made:
        await made.fleet.load("a")
        for pause in (0, 1, 2, 4):
            held = await made.fleet.resolve("a")
            made.launcher.loaded["a"].crash("has crashed")
            await asyncio.sleep(0.01)
            held.lease.release()
            if pause:
                await asyncio.sleep(pause / 2)
                with pytest.raises(WorkerEndedError, match=r"'a' has crashed\. Retry in"):
                    await made.ask("a")
                await asyncio.sleep(pause / 2 + 0.01)
            assert await made.ask("a") < 1
        await asyncio.sleep(61)
        made.launcher.loaded["a"].crash("has crashed")
        await asyncio.sleep(0.01)
        assert await made.ask("a") < 1


@virtually
async def test_deadlines_count_while_a_model_is_loaded():
    async with rig({"a": FakeModel(open_seconds=60)}) as made:
        for context in (RequestContext(timeout=5), RequestContext(first_token_timeout=5)):
            begun = asyncio.get_running_loop().time()
            with pytest.raises(RequestTimeoutError, match=r"'a' was still being loaded.*5\.0 s"):
                await made.ask("a", context=context, task="generate")
            assert asyncio.get_running_loop().time() - begun == pytest.approx(5)
        # What generates nothing has no first token.
        await made.ask("a", context=RequestContext(first_token_timeout=5))
        assert made.launcher.started == ["a"]


@virtually
async def test_only_so_many_wait_and_unknown_names_list_what_there_is():
    models = {"a": FakeModel(), "b": FakeModel()}
    async with rig(models, max_waiting=2) as made:
        waiting = [asyncio.ensure_future(made.ask("a")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match=r"The queue of a is full \(2 requests"):
            await made.ask("a")
        await asyncio.gather(*waiting)
        with pytest.raises(UnknownModelError, match="serves: a, b"):
            await made.ask("c")
        with pytest.raises(ParameterError, match="name one of a, b"):
            await made.fleet.resolve(None)
        with pytest.raises(UnsupportedTaskError):
            await made.fleet.resolve("a", "embed")
        assert made.fleet.members[0].running == 0


@virtually
async def test_who_asks_for_many_models_does_not_keep_another_from_one():
    models = {name: FakeModel() for name in "abcde"}
    async with rig(models, max_loaded=1) as made:
        answered: list[str] = []

        def ask(name: str, tenant: str) -> asyncio.Task[float]:
            task = asyncio.ensure_future(made.ask(name, 1.0, context=RequestContext(tenant=tenant)))
            task.add_done_callback(lambda _: answered.append(name))
            return task

        asked = [ask(name, "greedy") for name in "abcd"]
        await asyncio.sleep(0.1)
        asked.append(ask("e", "modest"))
        await asyncio.gather(*asked)
        assert answered == [*"aebcd"]


@virtually
async def test_tenants_share_what_may_wait_for_a_model():
    async with rig({"a": FakeModel()}, max_waiting=2) as made:
        contexts = [RequestContext(tenant=name) for name in ("greedy", "greedy", "modest")]
        contexts.append(RequestContext(tenant="third", max_waiting=1))
        asked = []
        for context in contexts:
            asked.append(asyncio.ensure_future(made.ask("a", context=context)))
            await asyncio.sleep(0)
        for context, limit in ((contexts[0], "max_queue"), (contexts[-1], "max_waiting")):
            with pytest.raises(QueueFullError) as caught:
                await made.ask("a", context=context)
            assert caught.value.limit == limit
        await asyncio.gather(*asked)


@virtually
async def test_where_nobody_may_wait_a_model_is_loaded_all_the_same():
    async with rig({"a": FakeModel()}, max_waiting=0) as made:
        first = asyncio.ensure_future(made.ask("a"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await made.ask("a")
        await first


@virtually
async def test_one_that_is_told_to_go_ends_what_it_does_and_comes_back_for_the_rest():
    async with rig({"a": FakeModel()}) as made:
        running = asyncio.ensure_future(made.ask("a", 10))
        await asyncio.sleep(2)
        unloading = asyncio.ensure_future(made.fleet.unload("a"))
        await asyncio.sleep(1)
        after = asyncio.ensure_future(made.ask("a"))
        await unloading
        assert running.done()
        await after
        assert made.launcher.started == ["a", "a"]
        loading = asyncio.ensure_future(made.fleet.unload("a"))
        await loading
        waiting = asyncio.ensure_future(made.ask("a"))
        await asyncio.sleep(0.5)
        assert made.fleet.members[0].progress is not None
        await made.fleet.unload("a")
        assert made.fleet.members[0].stage is Stage.UNLOADED
        with pytest.raises(Exception, match="was told to stop"):
            await waiting


@virtually
async def test_loading_can_be_stopped_before_it_has_begun_and_while_others_ask():
    async with rig({"a": FakeModel()}) as made:
        for rounds in range(8):  # of the event loop: at once, amid starting, while its file is read
            waiting = asyncio.ensure_future(made.ask("a"))
            for _ in range(rounds):
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await made.fleet.unload("a")
                await asyncio.gather(waiting, return_exceptions=True)
                assert await made.ask("a") < 2
                await made.fleet.unload("a")
        for seconds in (0.05, 0.5):  # its file is read, it is loaded
            first = asyncio.ensure_future(made.ask("a"))
            await asyncio.sleep(seconds)
            stopping = asyncio.ensure_future(made.fleet.unload("a"))
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await made.ask("a")  # it is loaded for this one as soon as it is gone
                await stopping
            with pytest.raises(ModelUnavailableError, match="was told to stop"):
                await first
            await made.fleet.unload("a")


@virtually
async def test_models_that_stay_make_way_for_nobody():
    made = Rig({"a": FakeModel(), "b": FakeModel(fixed=25)}, pinned=True)
    await made.fleet.start(["a"])
    await asyncio.sleep(1000)
    with pytest.raises(ModelTooLargeError, match="models that stay loaded"):
        await made.ask("b")
    assert made.loaded == {"a"}
    await made.fleet.shutdown()


@virtually
async def test_a_small_model_need_not_wait_behind_a_large_one_whose_room_it_does_not_take():
    models = {"a": FakeModel(fixed=20), "large": FakeModel(fixed=20), "small": FakeModel(fixed=3)}
    async with rig(models) as made:
        answering = asyncio.ensure_future(made.ask("a", 100))
        await asyncio.sleep(2)
        waiting = asyncio.ensure_future(made.ask("large"))
        await asyncio.sleep(1)
        assert await made.ask("small") < 2
        assert made.loaded == {"a", "small"}
        await answering
        await waiting
        assert made.loaded == {"small", "large"}


@virtually
async def test_models_go_past_one_whose_file_is_not_read_to_its_end():
    stuck = {f"stuck {i}": FakeModel(read_seconds=100.0) for i in range(4)}
    async with rig(stuck | {"small": FakeModel()}) as made:
        first = [asyncio.ensure_future(made.ask(name)) for name in stuck]
        await asyncio.sleep(0.1)
        assert await made.ask("small") == pytest.approx(11.0, abs=0.5)
        assert max(await asyncio.gather(*first)) < 110.0


@virtually
async def test_nobody_takes_the_room_that_the_first_in_the_line_waits_for():
    models = {"a": FakeModel(), "large": FakeModel(fixed=25), "small": FakeModel(fixed=12)}
    async with rig(models) as made:
        answering = asyncio.ensure_future(made.ask("a", 100))
        await asyncio.sleep(2)
        large = asyncio.ensure_future(made.ask("large", 5))
        await asyncio.sleep(1)
        small = asyncio.ensure_future(made.ask("small"))
        await asyncio.sleep(20)
        assert made.loaded == {"a"}
        await answering
        await large
        assert not small.done()
        await small


@virtually
async def test_a_model_that_is_made_anew_takes_the_place_of_what_runs():
    """What runs on the old one ends; who comes meanwhile gets the new one. Nobody need say it."""
    async with rig({"a": FakeModel()}) as made:
        running = asyncio.ensure_future(made.ask("a", 10))
        await asyncio.sleep(2)
        made.catalogue.change(offers(["a"], version="2"))
        found = made.fleet.find_now("a")  # beside which it is looked for what has changed
        assert found is not None
        found.lease.release()
        await asyncio.sleep(1)
        assert made.fleet.find_now("a") is None
        assert await made.ask("a") == pytest.approx(11.1 - 3 + 0.1 + 1.1)
        assert running.done()
        assert made.launcher.started == ["a", "a"]
        await asyncio.sleep(2)
        assert await made.ask("a") == 0


@virtually
async def test_a_deleted_model_ends_its_answers_and_is_nobodys():
    async with rig({"a": FakeModel(), "b": FakeModel(open_seconds=5)}) as made:
        running = asyncio.ensure_future(made.ask("a", 10))
        waiting = asyncio.ensure_future(made.ask("b"))
        await asyncio.sleep(3)
        made.catalogue.change([])
        members = await made.fleet.refresh()
        assert [(each.name, each.deleted) for each in members] == [("a", True), ("b", True)]
        assert made.loaded == {"a"}
        for asked in (waiting, made.ask("a"), made.ask("b")):
            with pytest.raises(UnknownModelError):
                await asked
        await running
        await asyncio.sleep(10)
        assert made.loaded == set()
        assert await made.fleet.refresh() == []
        made.catalogue.change(offers(["a"]))
        assert await made.ask("a") > 1


@virtually
async def test_at_the_start_models_are_loaded_as_far_as_they_fit_beside_each_other():
    made = Rig({name: FakeModel() for name in "abc"})
    await made.fleet.start("abc")
    assert made.loaded == {"a", "b"}
    assert made.fleet.ready
    await made.ask("c")
    assert "c" in made.loaded
    await made.fleet.shutdown()
    large = Rig({"a": FakeModel(fixed=40)})
    with pytest.raises(ModelTooLargeError):
        await large.fleet.start("a")
