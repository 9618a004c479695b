from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import openai
import pytest
import uvicorn
from tests.support.fake_model import ScriptedExecutor, serve_fake

from caudal.server.app import create_app
from caudal.server.served_model import ServedModel
from caudal.server.serving import listen, server_config
from caudal.server.state import ModelSlot


@dataclass
class RunningServer:
    """A real server on a free port, with clients for it."""

    url: str
    slot: ModelSlot
    http: httpx.Client

    @property
    def model(self) -> ServedModel:
        return self.slot.model

    def openai(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)

    def metric(self, sample: str) -> float:
        """A sample's value, e.g. `caudal_kv_blocks{state="used"}`."""
        for line in self.http.get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        raise KeyError(sample)


@contextlib.contextmanager
def running_server(
    model: ServedModel | None, api_key: str | None = None
) -> Iterator[RunningServer]:
    slot = ModelSlot()
    if model is not None:
        slot.fill(model)
    sock = listen("127.0.0.1", 0)
    server = uvicorn.Server(server_config(create_app(slot, api_key=api_key)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=30) as client:
            yield RunningServer(url, slot, client)
    finally:
        server.should_exit = True
        thread.join()
        if slot.ready:
            asyncio.run(slot.model.engine.shutdown(drain=False))


Serve = Callable[..., RunningServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a scripted executor: `serve(ScriptedExecutor(...), max_queue=1, ...)`."""
    with contextlib.ExitStack() as stack:

        def start(
            executor: ScriptedExecutor, *, api_key: str | None = None, **options: object
        ) -> RunningServer:
            model = serve_fake(executor, **options)
            return stack.enter_context(running_server(model, api_key))

        yield start


@pytest.fixture(scope="module")
def hello() -> Iterator[RunningServer]:
    """A server whose model always says `Hello, día!`."""
    with running_server(serve_fake(ScriptedExecutor(script="Hello, día!".encode()))) as server:
        yield server
