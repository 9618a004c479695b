"""AsyncEngine: streams, leaving early, shutdown, and a thread that dies."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from caudal.backends.executor import Batch
from caudal.engine.async_engine import AsyncEngine, RequestStream
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.grammar import Grammar, Grammars
from caudal.engine.request import FinishReason, Generate, Request, SequenceUpdate
from caudal.engine.stats import EngineStats
from caudal.errors import EngineDeadError, ParameterError, QueueFullError
from caudal.sampling_params import SamplingParams
from caudal.structured_outputs import StructuredOutputsParams
from support.fake_executor import FakeExecutor, expected_output
from support.fake_grammar import FakeGrammars, SlotGrammar

PROMPT = [3, 1, 4, 1, 5]


def request(name: str = "r", prompt: list[int] | None = None, **params: Any) -> Request:
    params = {"max_tokens": 5, "seed": 1, "ignore_eos": True, **params}
    work = Generate(SamplingParams(**params))
    return Request(request_id=name, prompt=prompt or PROMPT, work=work)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 30))


@asynccontextmanager
async def serving(
    executor: FakeExecutor, grammars: Grammars | None = None, **config: Any
) -> AsyncIterator[AsyncEngine]:
    limits = EngineConfig(**{"max_model_len": 200, **config})
    engine = AsyncEngine(Engine(executor, limits, frozenset({0}), grammars))
    try:
        yield engine
    finally:
        if executor.gate is not None:
            executor.gate.set()
        await engine.shutdown()


async def collect(stream: RequestStream) -> list[SequenceUpdate]:
    return [update async for updates in stream for update in updates]


def tokens(updates: list[SequenceUpdate], index: int = 0) -> list[int]:
    return [t.token for update in updates if update.index == index for t in update.tokens]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def in_thread(work: Callable[[], Any]) -> Any:
    awaitable: Awaitable[Any] = asyncio.to_thread(work)
    return await awaitable


class SlowToCount(Engine):
    """Takes its time to say what it has done."""

    def stats(self) -> EngineStats:
        time.sleep(0.02)
        return super().stats()


def test_who_is_told_of_an_end_finds_it_counted() -> None:
    async def main() -> None:
        engine = AsyncEngine(
            SlowToCount(FakeExecutor(), EngineConfig(max_model_len=200), frozenset({0}))
        )
        try:
            await collect(await engine.submit(request()))
            stats = engine.stats()
            assert (stats.running, stats.blocks_used) == (0, 0)
            assert (stats.finished[FinishReason.LENGTH], stats.generated_tokens) == (1, 5)
        finally:
            await engine.shutdown()

    run(main)


def test_a_stream_yields_everything_and_ends() -> None:
    async def main() -> None:
        async with serving(FakeExecutor()) as engine:
            updates = await collect(await engine.submit(request(n=2)))
            for index in (0, 1):
                assert tokens(updates, index) == expected_output(
                    PROMPT, seed=1, stream=index, count=5, vocab_size=50
                )
            ends = [update for update in updates if update.finish_reason]
            assert [end.finish_reason for end in ends] == [FinishReason.LENGTH] * 2

    run(main)


def test_many_streams_at_once() -> None:
    async def main() -> None:
        async with serving(FakeExecutor(num_blocks=60), max_num_seqs=8) as engine:
            streams = [
                await engine.submit(
                    request(f"r{i}", [i % 5 + 1] * (i % 9 + 1), max_tokens=20, seed=i)
                )
                for i in range(60)
            ]
            results = await asyncio.gather(*map(collect, streams))
            for i, updates in enumerate(results):
                assert tokens(updates) == expected_output(
                    [i % 5 + 1] * (i % 9 + 1), seed=i, count=20, vocab_size=50
                )

    run(main)


def test_errors_are_raised_by_submit_itself() -> None:
    async def main() -> None:
        executor = FakeExecutor(gate=threading.Event())
        async with serving(executor, max_num_seqs=1, max_queue=1) as engine:
            with pytest.raises(ParameterError):
                await engine.submit(request(prompt=[99]))
            first = await engine.submit(request("a"))
            with pytest.raises(ValueError, match="in use"):
                await engine.submit(request("a"))
            second = await engine.submit(request("b"))
            with pytest.raises(QueueFullError):
                await engine.submit(request("c"))
            await in_thread(executor.entered.wait)
            with pytest.raises(QueueFullError):  # the same once the engine has taken them in
                await engine.submit(request("c"))
            assert executor.gate is not None
            executor.gate.set()
            await asyncio.gather(collect(first), collect(second))

    run(main)


class SlowGrammars(FakeGrammars):
    """Makes grammars when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def compile(self, work: Generate) -> Grammar:
        self.asked.set()
        await self.go_on.wait()
        return self.compile_now(work)


def test_only_a_grammar_is_waited_for() -> None:
    async def main() -> None:
        async with serving(FakeExecutor()) as engine:
            with pytest.raises(StopIteration) as done:  # in one go, without a turn of the loop
                engine.submit(request()).send(None)
            assert len(tokens(await collect(done.value.value))) == 5

    run(main)


def test_a_grammar_is_made_before_anything_is_queued() -> None:
    async def main() -> None:
        grammars = SlowGrammars()
        form = grammars.form(SlotGrammar([[1], [2]]))
        wrong = StructuredOutputsParams(grammar="99")
        async with serving(FakeExecutor(), grammars, max_num_seqs=1, max_queue=1) as engine:
            with pytest.raises(ParameterError):  # for which no grammar is worth making
                await engine.submit(request(prompt=[99], structured_outputs=form))
            assert not grammars.asked.is_set()
            submitting = [
                asyncio.create_task(engine.submit(request(name, structured_outputs=each)))
                for name, each in [("a", form), ("b", form), ("c", form), ("d", wrong)]
            ]
            await grammars.asked.wait()
            assert not engine._mailboxes
            other = await engine.submit(request("b", max_tokens=150))
            submitting[0].cancel()
            grammars.go_on.set()
            results = await asyncio.gather(*submitting, return_exceptions=True)
            assert [type(result) for result in results] == [
                asyncio.CancelledError,
                ValueError,  # the id was taken meanwhile
                RequestStream,
                IndexError,
            ]
            assert isinstance(results[2], RequestStream)
            assert tokens(await collect(results[2])) == [1, 2]
            await collect(other)
            assert sum(engine.stats().finished.values()) == 2

    run(main)


def test_submitting_and_reading_stats_do_not_wait_for_an_iteration() -> None:
    async def main() -> None:
        executor = FakeExecutor(gate=threading.Event())
        async with serving(executor) as engine:
            first = await engine.submit(request("a"))
            await in_thread(executor.entered.wait)
            began = time.perf_counter()
            second = await engine.submit(request("b"))
            engine.cancel("b")
            assert engine.stats().blocks_total == 64
            assert time.perf_counter() - began < 1.0  # the gate holds the iteration for 30 s
            assert executor.gate is not None
            executor.gate.set()
            assert len(tokens(await collect(first))) == 5
            assert (await collect(second))[-1].finish_reason is FinishReason.CANCELLED

    run(main)


@pytest.mark.parametrize("way", ["async with", "aclose", "drop", "task"])
def test_leaving_early_cancels_the_request(way: str) -> None:
    async def main() -> None:
        async with serving(FakeExecutor(num_blocks=2000), max_model_len=8000) as engine:
            endless = request(max_tokens=7000)
            reading = asyncio.Event()

            async def read() -> None:
                async for _ in await engine.submit(endless):
                    reading.set()

            if way == "async with":
                async with await engine.submit(endless) as stream:
                    await anext(stream)
            elif way == "aclose":
                stream = await engine.submit(endless)
                await anext(stream)
                await stream.aclose()
                await stream.aclose()
                with pytest.raises(StopAsyncIteration):
                    await anext(stream)
            elif way == "drop":
                async for _ in await engine.submit(endless):
                    break
                gc.collect()
            else:
                task = asyncio.create_task(read())
                await reading.wait()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del task
                gc.collect()
            await until(lambda: engine.stats().finished[FinishReason.CANCELLED] == 1)
            stats = engine.stats()
            assert (stats.running, stats.blocks_used) == (0, 0)
            assert stats.generated_tokens < 7000
            await until(lambda: not engine._mailboxes)
            assert len(tokens(await collect(await engine.submit(request())))) == 5  # the id is free

    run(main)


def test_a_read_that_times_out_does_not_lose_the_stream() -> None:
    async def main() -> None:
        executor = FakeExecutor(gate=threading.Event())
        async with serving(executor) as engine:
            stream = await engine.submit(request())
            for _ in range(3):  # as a server does that sends a sign of life meanwhile
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.01)
            assert executor.gate is not None
            executor.gate.set()
            assert len(tokens(await collect(stream))) == 5

    run(main)


def test_cancel_ends_one_sequence_or_all() -> None:
    async def main() -> None:
        async with serving(FakeExecutor(num_blocks=2000), max_model_len=8000) as engine:
            stream = await engine.submit(request(n=2, max_tokens=7000))
            await anext(stream)
            engine.cancel("r", 0, FinishReason.STOP)
            engine.cancel("r", 1)
            engine.cancel("nobody")
            ends = {u.index: u.finish_reason for u in await collect(stream) if u.finish_reason}
            assert ends == {0: FinishReason.STOP, 1: FinishReason.CANCELLED}

    run(main)


def test_a_failing_executor_fails_its_requests_and_serves_the_next() -> None:
    async def main() -> None:
        def fail(batch: Batch) -> None:
            raise RuntimeError("broken")

        executor = FakeExecutor(fail=fail)
        async with serving(executor) as engine:
            updates = await collect(await engine.submit(request()))
            assert updates[-1].finish_reason is FinishReason.FAILED
            assert updates[-1].error == "RuntimeError: broken"
            assert engine.healthy
            executor.fail = None
            assert len(tokens(await collect(await engine.submit(request())))) == 5

    run(main)


def test_when_the_thread_dies_every_stream_raises_and_nothing_is_taken() -> None:
    class Fatal(BaseException):
        pass

    async def main() -> None:
        def die(batch: Batch) -> None:
            raise Fatal("no way on")

        executor = FakeExecutor(fail=die)
        async with serving(executor) as engine:
            streams = [await engine.submit(request(f"r{i}")) for i in range(3)]
            for stream in streams:
                with pytest.raises(EngineDeadError, match="Fatal: no way on"):
                    await collect(stream)
            assert not engine.healthy
            with pytest.raises(EngineDeadError, match="no way on"):
                await engine.submit(request())
            await until(lambda: executor.closed)

    run(main)


def test_shutdown_cancels_what_lives() -> None:
    async def main() -> None:
        executor = FakeExecutor(num_blocks=100, gate=threading.Event())
        async with serving(executor, max_model_len=400) as engine:
            stream = await engine.submit(request(max_tokens=100))
            await in_thread(executor.entered.wait)
            shutdown = asyncio.create_task(engine.shutdown())
            await until(lambda: not engine.healthy)
            with pytest.raises(EngineDeadError, match="shutting down"):
                await engine.submit(request("late"))
            assert executor.gate is not None
            executor.gate.set()
            updates = await collect(stream)
            await shutdown
            await engine.shutdown()
            assert executor.closed
            assert updates[-1].finish_reason is FinishReason.CANCELLED
            assert len(tokens(updates)) < 100

    run(main)


def test_deadlines_and_dynamic_batching_need_no_submission_to_go_on() -> None:
    async def main() -> None:
        async with serving(
            FakeExecutor(),
            batching="dynamic",
            max_queue_delay=0.05,
            first_token_timeout=20.0,
        ) as engine:
            assert len(tokens(await collect(await engine.submit(request())))) == 5

    run(main)


def test_an_idle_engine_uses_no_cpu() -> None:
    async def main() -> None:
        async with serving(FakeExecutor()) as engine:
            await collect(await engine.submit(request()))
            before = time.process_time()
            await asyncio.sleep(0.3)
            assert time.process_time() - before < 0.05

    run(main)


def test_a_closed_event_loop_ends_its_requests() -> None:
    engine = AsyncEngine(
        Engine(FakeExecutor(num_blocks=2000), EngineConfig(max_model_len=8000), frozenset({0}))
    )
    kept: list[RequestStream] = []

    async def abandon() -> None:
        kept.append(await engine.submit(request(max_tokens=7000)))
        await anext(kept[0])

    asyncio.run(abandon())

    async def main() -> None:
        await until(lambda: engine.stats().finished[FinishReason.CANCELLED] == 1)
        assert len(tokens(await collect(await engine.submit(request("next"))))) == 5
        await engine.shutdown()

    run(main)
