"""What passes between processes: garbage, cancelled calls, news that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest

from caudal.engine.wire import pack
from caudal.errors import WorkerEndedError
from caudal.sampling_params import SamplingParams
from caudal.service.answers import Delta, SubmittedPrompt, Usage
from caudal.service.context import RequestContext
from caudal.service.service import RunningText, Service
from caudal.service.work import CompletionWork
from caudal.workers.answering import CallServer, ServiceHost
from caudal.workers.channel import MAX_MESSAGE, Channel
from caudal.workers.connection import Connection
from caudal.workers.heartbeat import ALIVE, ENGINE_HANGS, EngineWatch, Listener, Patience
from caudal.workers.messages import METHODS, Call, OfWorker, Returned, ToWorker
from caudal.workers.remote_answer import WINDOW
from caudal.workers.remote_service import RemoteService
from support.fake_model import ScriptedExecutor, serve_fake
from support.far_model import FarModel


@contextlib.asynccontextmanager
async def far_service(executor: ScriptedExecutor, **options: Any) -> AsyncIterator[RemoteService]:
    far = FarModel(serve_fake(executor, **options))
    service = await far.connect()
    try:
        yield service
    finally:
        await service.shutdown()
        far.connection.close()
        await asyncio.to_thread(far.close)


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(message)) + message for message in messages)


GARBAGE = {
    "no message": framed(b"\xc1"),
    "noise": framed(random.Random(1).randbytes(1000)),
    "too long": struct.pack("<I", MAX_MESSAGE + 1),
    "of another kind": framed(pack({"call": 1})),
    "of another tag": framed(pack([77, 1, 2])),
    "nothing": framed(b""),
}


@pytest.mark.parametrize("kind", [ToWorker, OfWorker], ids=["to", "of"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_a_channel_and_nothing_else(kind: Any, garbage: bytes):
    taken: list[Any] = []
    ends: list[Exception | None] = []
    good = Call(1, "info", b"") if kind == ToWorker else Returned(1, b"")

    async def send() -> None:
        ours, theirs = socket.socketpair()
        channel = Channel(kind, taken.append, ends.append)
        await channel.open(theirs)
        with ours:
            ours.sendall(framed(pack(good)) + garbage + framed(pack(good)))
            while not ends:
                await asyncio.sleep(0.001)
            assert ours.recv(10) == b""
        channel.send(good)
        channel.close()
        await asyncio.sleep(0)

    asyncio.run(send())
    assert taken == [good]
    assert len(ends) == 1
    assert ends[0] is not None


def test_a_message_may_come_in_pieces():
    taken: list[Any] = []

    async def send() -> None:
        ours, theirs = socket.socketpair()
        await Channel(ToWorker, taken.append, lambda error: None).open(theirs)
        with ours:
            for byte in framed(pack(Call(3, "info", b"x" * 40))):
                ours.sendall(bytes([byte]))
                await asyncio.sleep(0)
            while not taken:
                await asyncio.sleep(0.001)

    asyncio.run(send())
    assert taken == [Call(3, "info", b"x" * 40)]


def test_what_is_asked_wrongly_is_refused_and_the_rest_answered():
    ends: list[Exception | None] = []

    async def ask() -> None:
        async def double(call: int, number: int) -> int:
            return 2 * number

        server = CallServer(ends.append)
        server.handlers["close"] = double
        connection = Connection()
        ours, theirs = socket.socketpair()
        await server.channel.open(theirs)
        await connection.open(ours)
        for method, arguments in (("close", ("two",)), ("close", ()), ("render", (1,))):
            with pytest.raises(RuntimeError, match="in the model's process"):
                await connection.call(method, *arguments)
        connection.close()
        while not ends:
            await asyncio.sleep(0.001)

    asyncio.run(ask())
    assert ends == [None]


class SteppedAnswer:
    """Says a word at each step that a test makes."""

    prompt = SubmittedPrompt(1)
    prompt_tokens = ()

    def __init__(self, steps: asyncio.Queue[str | None]) -> None:
        self._steps = steps
        self.said = 0
        self.closed = False

    @property
    def usage(self) -> Usage:
        return Usage(1, 0, self.said)

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        while (word := await self._steps.get()) is not None:
            self.said += 1
            yield [Delta(0, word)]

    async def aclose(self) -> None:
        self.closed = True


class SteppedService:
    """Continues a prompt by what a test says; all else it has never heard of."""

    def __init__(self) -> None:
        self.answers: list[SteppedAnswer] = []
        self.steps: list[asyncio.Queue[str | None]] = []

    async def complete(self, work: CompletionWork, context: RequestContext) -> list[SteppedAnswer]:
        self.steps = [asyncio.Queue() for _ in work.prompts]
        self.answers = list(map(SteppedAnswer, self.steps))
        return self.answers

    def __getattr__(self, name: str) -> None:
        return None


@contextlib.asynccontextmanager
async def stepped() -> AsyncIterator[tuple[SteppedService, Connection, RemoteService]]:
    """A service that a test steps, and it as seen from afar, on the same event loop."""
    service, ends = SteppedService(), []
    server = CallServer(ends.append)
    ServiceHost(service, server)  # type: ignore[arg-type]
    connection = Connection()
    ours, theirs = socket.socketpair()
    await server.channel.open(theirs)
    await connection.open(ours)
    yield service, connection, RemoteService(connection, None)  # type: ignore[arg-type]
    connection.close()
    while not ends:
        await asyncio.sleep(0.001)


def works(prompts: int) -> CompletionWork:
    return CompletionWork(prompts=["go"] * prompts, params=SamplingParams())


async def settle() -> None:
    """Let everything happen that is under way."""
    for _ in range(30):
        await asyncio.sleep(0.001)


def test_all_that_a_service_does_can_be_asked_from_afar():
    async def handlers() -> set[str]:
        server = CallServer(lambda error: None)
        ServiceHost(SteppedService(), server)  # type: ignore[arg-type]
        return set(server.handlers)

    deeds = {name for name, deed in vars(Service).items() if inspect.iscoroutinefunction(deed)}
    assert {"chat", "embed", "stats"} <= deeds
    assert deeds <= vars(RemoteService).keys(), "else what it inherits does nothing"
    assert deeds <= METHODS.keys()
    assert asyncio.run(handlers()) == METHODS.keys() - {"plan", "open"}


def test_news_that_nobody_reads_wait_in_the_worker():
    async def read_late() -> None:
        async with stepped() as (service, _, remote):
            [text] = await remote.complete(works(1))
            [answer], [steps] = service.answers, service.steps
            words = [f"{number} " for number in range(3 * WINDOW)]
            for word in words:
                steps.put_nowait(word)
            await settle()
            assert answer.said == 0, "nobody has begun to read"
            stream = text.deltas()
            found = await anext(stream)
            await settle()
            assert answer.said == WINDOW
            steps.put_nowait(None)
            async for deltas in stream:
                found += deltas
            assert [delta.text for delta in found] == words
            assert text.usage.output_tokens == len(words)

    asyncio.run(read_late())


def test_all_answers_news_of_an_iteration_are_one_message():
    async def count() -> None:
        async with stepped() as (service, connection, remote):
            texts = await remote.complete(works(8))
            messages: list[int] = []
            take = connection._hand_out

            def counted(pieces: Sequence[Any]) -> None:
                messages.extend([len(pieces)] if pieces else [])
                take(pieces)

            connection._hand_out = counted  # type: ignore[method-assign]

            async def read(text: RunningText) -> str:
                return "".join([delta.text async for deltas in text.deltas() for delta in deltas])

            reading = asyncio.gather(*map(read, texts))
            await settle()
            for word in ("one ", "two ", None):
                for steps in service.steps:
                    steps.put_nowait(word)
                await settle()
            assert await reading == ["one two "] * 8
            assert messages == [8, 8, 8]

    asyncio.run(count())


def test_what_was_begun_for_nobody_is_ended():
    """A call is cancelled whose answer is on its way already."""

    async def cancel() -> None:
        async with stepped() as (service, connection, remote):
            asking = asyncio.ensure_future(remote.complete(works(2)))
            while not service.answers:
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await settle()
            assert [answer.closed for answer in service.answers] == [True, True]
            await asyncio.wait_for(connection.wait_idle(), 1)

    asyncio.run(cancel())


def test_who_goes_away_ends_what_was_asked():
    executor = ScriptedExecutor(script=b"x" * 10_000, num_blocks=1024)
    work = CompletionWork(prompts=["go", "on"], params=SamplingParams(max_tokens=10_000))

    async def go_away() -> None:
        async with far_service(executor, max_model_len=16_000) as service:
            for text in await service.complete(work):
                async for _ in text.deltas():
                    break
                await text.aclose()
            begun = (await service.stats()).prompt_tokens
            asking = asyncio.ensure_future(service.complete(work))
            while (await service.stats()).prompt_tokens == begun:
                await asyncio.sleep(0)
            asking.cancel()  # it may have been answered just now
            with contextlib.suppress(asyncio.CancelledError):
                for text in await asking:
                    await text.aclose()
            while (stats := await service.stats()).running or stats.waiting:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(go_away(), 30))


def test_what_has_ended_is_said_of_all_that_was_asked():
    executor = ScriptedExecutor(script=b"x" * 10_000, num_blocks=1024)
    work = CompletionWork(prompts=["go"], params=SamplingParams(max_tokens=10_000))

    async def end() -> None:
        far = FarModel(serve_fake(executor, max_model_len=16_000))
        service = await far.connect()
        [text] = await service.complete(work)
        stream = text.deltas()
        await anext(stream)
        far.connection.close()
        with pytest.raises(WorkerEndedError, match="'far' has gone"):
            async for _ in stream:
                pass
        with pytest.raises(WorkerEndedError):
            await service.render(None)  # type: ignore[arg-type]
        assert not service.healthy
        await text.aclose()
        await service.shutdown()
        await asyncio.to_thread(far.close)
        await far.behind.shutdown()

    asyncio.run(end())


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        ((), "no sign of life for 0 s"),
        ((ALIVE, b""), "no sign of life for 0 s"),
        ((ALIVE, ENGINE_HANGS), "its engine hasn't gone round for long"),
    ],
    ids=["silent", "falls silent", "says so"],
)
def test_who_listens_knows_who_hangs(signs: tuple[bytes, ...], words: str):
    heard: list[str] = []

    async def listen() -> None:
        ours, theirs = os.pipe()
        listener = Listener(ours, heard.append, Patience(start=10, silence=3), interval=0.002)
        for _ in range(15 if signs else 0):
            os.write(theirs, ALIVE)
            await asyncio.sleep(0.002)
        assert heard == []
        os.write(theirs, b"".join(signs))
        while not heard:
            await asyncio.sleep(0.002)
        listener.close()
        os.close(theirs)

    asyncio.run(asyncio.wait_for(listen(), 10))
    assert len(heard) == 1
    assert words in heard[0]


def test_an_engine_hangs_that_goes_round_no_more():
    watch = EngineWatch(Patience(idle_engine=3, busy_engine=10))
    assert not any(watch.hangs(None, 0.0) for _ in range(20)), "it has nothing to do"
    assert not any(watch.hangs(rounds, 0.0) for rounds in range(20))
    assert [watch.hangs(20, 0.0) for _ in range(5)] == [False] * 4 + [True]
    watch = EngineWatch(Patience(idle_engine=3, busy_engine=10))
    busy = [watch.hangs(1, float(spent)) for spent in range(12)]
    assert busy == [False] * 11 + [True], "what it computes takes long, but not for ever"
