"""What Python takes of an iteration while a server streams: `caudal bench engine --profile`.

A real server on this process's event loop answers a load from a process of its own. What counts is
a stretch in which all streams run and no prompt is computed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from caudal.backends.native.executor import NativeExecutor
from caudal.bench.engine import BenchmarkError
from caudal.engine.async_engine import AsyncEngine
from caudal.loading.load import LoadedModel
from caudal.server.app import create_app
from caudal.server.limits import ServerLimits
from caudal.server.server_config import ServerConfig
from caudal.server.serving import Server, listen
from caudal.service.model_service import ModelService
from caudal.service.parts import ServiceParts
from caudal.service.registry import ModelRegistry

STREAMS = 32
PROMPT_TOKENS = 32
OUTPUT_TOKENS = 256
ITERATIONS = 128
POLL_SECONDS = 0.02

_COMMAND = "from caudal.cli import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCost:
    """Averages over some iterations, in seconds.

    Attributes:
        streams: Sequences of each iteration, one token each, streamed by HTTP.
        iteration: From the beginning of an iteration to that of the next.
        engine: Time of that in which the engine's thread is not in the native library: scheduling,
            making up the batch, taking in what came out. Nothing is computed meanwhile.
        event_loop: Processor time of the event loop's thread: detokenising, server-sent events,
            HTTP. It runs beside what is computed, but takes a processor from it.
    """

    streams: int
    iteration: float
    engine: float
    event_loop: float


def measure_python(
    model: LoadedModel, executor: NativeExecutor, *, streams: int = STREAMS
) -> PythonCost:
    """Serve a model to `streams` clients and measure; the model can't be used afterwards.

    Args:
        model: The model.
        executor: What runs it.
        streams: How many answers at once.

    Raises:
        BenchmarkError: The load has failed.
    """
    service = ModelService(ServiceParts.from_loaded(model))
    registry = ModelRegistry()
    registry.add(service)
    config = ServerConfig(create_app(registry), ServerLimits())
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(_measure(executor, config, registry, service, streams))


async def _measure(
    executor: NativeExecutor,
    config: ServerConfig,
    registry: ModelRegistry,
    served: ModelService,
    streams: int,
) -> PythonCost:
    async with _serving(config, registry) as port, _load(served, port, streams) as client:
        await _wait_for(served.parts.engine, client, streams, 1)
        iterations, native = served.parts.engine.stats().iterations, executor.native_seconds
        began, on_loop = time.perf_counter(), time.thread_time()
        await _wait_for(served.parts.engine, client, streams, iterations + ITERATIONS)
        iterations = served.parts.engine.stats().iterations - iterations
        seconds = time.perf_counter() - began
        return PythonCost(
            streams=streams,
            iteration=seconds / iterations,
            engine=(seconds - (executor.native_seconds - native)) / iterations,
            event_loop=(time.thread_time() - on_loop) / iterations,
        )


@asynccontextmanager
async def _serving(config: ServerConfig, registry: ModelRegistry) -> AsyncIterator[int]:
    sock = listen("127.0.0.1", 0)
    server = Server(config, registry)
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    try:
        yield sock.getsockname()[1]
    finally:
        await registry.default.shutdown()
        server.should_exit = True
        await serving


@asynccontextmanager
async def _load(
    served: ModelService, port: int, streams: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = ["bench", "serve", f"http://127.0.0.1:{port}", served.names[0]]
    options = {
        "requests": streams,
        "concurrency": streams,
        "prompt-tokens": PROMPT_TOKENS,
        "output-tokens": OUTPUT_TOKENS,
        "vocab-size": served.parts.tokenizer.vocab_size,
    }
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _COMMAND, *arguments),
        *(f"--{name}={value}" for name, value in options.items()),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield client
    finally:
        if client.returncode is None:
            client.kill()
        await client.wait()


async def _wait_for(
    engine: AsyncEngine, client: asyncio.subprocess.Process, streams: int, iterations: int
) -> None:
    """Until all streams are in their answers and so many iterations have run."""
    while True:
        stats = engine.stats()
        if stats.iterations >= iterations and stats.last_batch_tokens == streams:
            return
        if client.returncode is not None or not engine.healthy:
            raise BenchmarkError(f"a server with {streams} streams could not be measured")
        await asyncio.sleep(POLL_SECONDS)
