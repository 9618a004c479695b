"""A real server on a fake model, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
from starlette.types import ASGIApp

from caudal.server.app import create_app
from caudal.server.auth import Access
from caudal.server.limits import ServerLimits
from caudal.server.server_config import ServerConfig
from caudal.server.serving import Server, listen
from caudal.service.model_service import ModelService
from caudal.service.registry import ModelRegistry
from caudal.service.service import Service
from support.wire_service import WireService


@dataclass
class RunningServer:
    """A real server on a free port, with clients for it."""

    url: str
    registry: ModelRegistry
    http: httpx.Client

    @property
    def model(self) -> ModelService:
        service = self.registry.default
        return service.behind if isinstance(service, WireService) else service

    def openai(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)

    def anthropic(self, api_key: str = "none") -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key=api_key, max_retries=0)

    def metric(self, sample: str) -> float:
        """A sample's value, e.g. `caudal_kv_blocks{state="used"}`."""
        for line in self.http.get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        raise KeyError(sample)

    def wait_for_metric(self, sample: str, value: float, seconds: float = 30) -> None:
        """Wait until a sample has a value: the engine may notice what a client did only later."""
        deadline = time.monotonic() + seconds
        while (found := self.metric(sample)) != value:
            assert time.monotonic() < deadline, f"{sample} is {found}, not {value}"
            time.sleep(0.01)


@contextlib.contextmanager
def running_server(
    model: Service | None,
    *,
    api_key: str | None = None,
    access: Access | None = None,
    limits: ServerLimits | None = None,
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    **options: Any,
) -> Iterator[RunningServer]:
    """Serve a model, or none yet, with what `around` puts around the application.

    The other options are `create_app`'s.
    """
    registry = ModelRegistry()
    if model is not None:
        registry.add(model)
    sock = listen("127.0.0.1", 0)
    limits = limits or ServerLimits()
    app = create_app(registry, access=access or Access(api_key=api_key), limits=limits, **options)
    server = Server(ServerConfig(around(app), limits), registry)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=30) as client:
            yield RunningServer(url, registry, client)
    finally:
        server.should_exit = True
        thread.join()
        if registry.ready:
            asyncio.run(registry.shutdown())


Serve = Callable[..., RunningServer]
"""The fixture `serve`: `serve(ScriptedExecutor(...), max_queue=1, ...)`."""
