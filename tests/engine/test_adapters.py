"""Adapters in the engine: mixed in a batch, apart in the cache, loaded and unloaded as it runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from caudal.engine.async_engine import AsyncEngine
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.request import FinishReason, Generate, Request
from caudal.errors import EngineDeadError, ModelLoadError, UnknownAdapterError
from caudal.formats.lora.adapter import Adapter
from caudal.sampling_params import SamplingParams
from support.engine_harness import Harness
from support.fake_executor import FakeExecutor, expected_output, with_adapter
from support.tiny_adapter import tiny_adapter

PROMPT = list(range(1, 21))


def test_two_adapters_and_the_model_answer_otherwise_and_each_the_same_mixed_cold_and_warm():
    harness = Harness()
    who = [None, harness.load_adapter(), harness.load_adapter()]
    cold = [
        harness.submit(PROMPT, adapter=each, max_tokens=12, n=2, ignore_eos=True) for each in who
    ]
    harness.run()
    assert [harness.cached(each) for each in cold] == [0, 0, 0], "nobody else's prefix counts"
    assert len({tuple(harness.output(each)) for each in cold}) == 3
    warm = [
        harness.submit(PROMPT, adapter=each, max_tokens=12, n=2, ignore_eos=True) for each in who
    ]
    harness.run()
    assert [harness.cached(each) for each in warm] == [19, 19, 19]
    harness.check_outputs()  # against what each would say alone


def test_what_is_preempted_goes_on_with_its_adapter():
    harness = Harness(num_blocks=12, max_model_len=40)
    who = [harness.load_adapter(), harness.load_adapter(), None]
    for adapter in who:
        harness.submit(PROMPT[:5], adapter=adapter, max_tokens=25, ignore_eos=True)
    harness.run()
    assert harness.engine.stats().preemptions > 0
    harness.check_outputs()


def test_an_adapter_is_unloaded_once_its_requests_have_ended():
    harness = Harness()
    number = harness.load_adapter("sql")
    running = harness.submit(PROMPT, adapter=number, max_tokens=6, ignore_eos=True)
    harness.step()
    harness.engine.adapters.unload(number)
    assert harness.engine.adapters.offered == ()
    assert harness.engine.stats().adapters == {"sql": 1}
    with pytest.raises(UnknownAdapterError, match="'sql' cannot be found"):
        harness.submit(PROMPT, adapter=number)
    # One of the same name is another: it gets nothing of what the first has cached.
    other = harness.load_adapter("sql")
    assert len(harness.executor.adapters) == 2
    harness.run()
    assert len(harness.executor.adapters) == 1
    assert harness.engine.stats().adapters == {"sql": 0}
    later = harness.submit(PROMPT, adapter=other, max_tokens=6, ignore_eos=True)
    harness.run()
    assert harness.cached(later) == 0
    harness.check_outputs()
    assert harness.reason(running) is FinishReason.LENGTH
    harness.engine.adapters.unload(other)
    assert harness.engine.stats().adapters == harness.executor.adapters == {}


def request(name: str, adapter: int | None, tokens: int = 30) -> Request:
    params = SamplingParams(max_tokens=tokens, seed=5, ignore_eos=True)
    return Request(request_id=name, prompt=PROMPT, work=Generate(params), adapter=adapter)


def test_adapters_come_and_go_while_others_are_answered():
    executor = FakeExecutor(num_blocks=256)
    engine = AsyncEngine(Engine(executor, EngineConfig(max_model_len=200), frozenset({0})))

    async def tokens(name: str, adapter: int | None) -> list[int]:
        stream = await engine.submit(request(name, adapter))
        return [each.token async for updates in stream for up in updates for each in up.tokens]

    async def come_and_go(lane: int) -> None:
        for turn in range(8):
            source = f"{lane} {turn}"
            made = await engine.load_adapter("mine", tiny_adapter(source))
            answers = [asyncio.create_task(tokens(f"{source} {i}", made.number)) for i in range(2)]
            base = asyncio.create_task(tokens(f"{source} base", None))
            await asyncio.sleep(0)
            engine.unload_adapter(made.number)  # amid its answers
            with pytest.raises(UnknownAdapterError):
                await engine.submit(request(f"{source} late", made.number))
            seed = with_adapter(5, source)
            expected = expected_output(PROMPT, seed=seed, count=30, vocab_size=50)
            assert await asyncio.gather(*answers) == [expected, expected]
            assert await base == expected_output(PROMPT, seed=5, count=30, vocab_size=50)

    async def check() -> None:
        await asyncio.gather(*map(come_and_go, range(4)))
        assert engine.adapters == ()
        await engine.shutdown()
        assert executor.adapters == {}

    asyncio.run(check())


class RefusingExecutor(FakeExecutor):
    def load_adapter(self, adapter: Adapter) -> None:
        raise ModelLoadError(adapter.source, "it is for another model")


def test_an_adapter_that_cannot_be_used_harms_nobody_and_an_end_leaves_nobody_waiting():
    gate = threading.Event()
    gate.set()
    executor = RefusingExecutor(gate=gate)
    engine = AsyncEngine(Engine(executor, EngineConfig(max_model_len=200), frozenset({0})))

    async def check() -> None:
        with pytest.raises(ModelLoadError, match="it is for another model"):
            await engine.load_adapter("odd", tiny_adapter("odd"))
        gate.clear()
        stream = await engine.submit(request("r", None))
        await asyncio.to_thread(executor.entered.wait)
        waiting = asyncio.create_task(engine.load_adapter("odd", tiny_adapter("odd")))
        given_up = asyncio.create_task(engine.load_adapter("odd", tiny_adapter("odd")))
        await asyncio.sleep(0)
        given_up.cancel()
        executor.fail = lambda batch: (_ for _ in ()).throw(SystemExit)  # the thread ends
        gate.set()
        with pytest.raises(EngineDeadError):
            await waiting
        await stream.aclose()
        with pytest.raises(EngineDeadError):
            await engine.load_adapter("odd", tiny_adapter("odd"))

    asyncio.run(check())
