"""A real server on a fake model, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
from starlette.types import ASGIApp

from caudal.server.app import create_app
from caudal.server.auth import Access
from caudal.server.certificates import Certificates
from caudal.server.draining import Draining
from caudal.server.limits import ServerLimits
from caudal.server.server_config import ServerConfig
from caudal.server.serving import Server, listen
from caudal.service.model_service import ModelService
from caudal.service.models import Models
from caudal.service.registry import ModelRegistry
from caudal.service.service import Service
from support.far_model import FarModel


def metric_value(text: str, sample: str) -> float:
    """The value of the one sample that has this name and these labels, among others it may have."""
    name, _, labels = sample.rstrip("}").partition("{")
    wanted = set(re.findall(r'(\w+="[^"]*")', labels))
    found = []
    for line in text.splitlines():
        key, _, value = line.rpartition(" ")
        its_name, _, its_labels = key.rstrip("}").partition("{")
        if its_name == name and wanted <= set(re.findall(r'(\w+="[^"]*")', its_labels)):
            found.append(float(value))
    if not found:
        raise KeyError(sample)
    [only] = found
    return only


@dataclass
class AnyServer:
    """A real server on a free port, with clients for it."""

    url: str
    http: httpx.Client

    def openai(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)

    def anthropic(self, api_key: str = "none") -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key=api_key, max_retries=0)

    def metric(self, sample: str) -> float:
        """A sample's value, e.g. `caudal_kv_blocks{state="used"}`; of a server of one model, whose
        name needn't be said.
        """
        return metric_value(self.http.get("/metrics").text, sample)

    def wait_for_metric(self, sample: str, value: float, seconds: float = 30) -> None:
        """Wait until a sample has a value: the engine may notice what a client did only later."""
        deadline = time.monotonic() + seconds
        while (found := self.metric(sample)) != value:
            assert time.monotonic() < deadline, f"{sample} is {found}, not {value}"
            time.sleep(0.01)


class RunningServer(AnyServer):
    """One of a model that runs already."""

    def __init__(
        self, url: str, registry: ModelRegistry, http: httpx.Client, far: FarModel | None
    ) -> None:
        super().__init__(url, http)
        self.registry = registry
        self.far = far

    @property
    def model(self) -> ModelService:
        """The model, in this process wherever it is asked from."""
        return self.registry.default if self.far is None else self.far.behind


@contextlib.contextmanager
def running_server(
    model: Service | FarModel | None,
    *,
    api_key: str | None = None,
    access: Access | None = None,
    limits: ServerLimits | None = None,
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    **options: Any,
) -> Iterator[RunningServer]:
    """Serve a model, or none yet, with what `around` puts around the application.

    The other options are `create_app`'s, and `certificates` with what clients `verify` them by.
    """
    registry = ModelRegistry()
    far = model if isinstance(model, FarModel) else None

    async def start() -> None:
        if isinstance(model, FarModel):
            registry.add(await model.connect())
        elif model is not None:
            registry.add(model)

    with _running(
        registry, start, access or Access(api_key=api_key), limits, around, **options
    ) as (url, http):
        yield RunningServer(url, registry, http, far)
    if far is not None:
        far.close()


@contextlib.contextmanager
def running_models(
    models: Models,
    start: Callable[[], Awaitable[None]],
    *,
    access: Access | None = None,
    **options: Any,
) -> Iterator[AnyServer]:
    """Serve models, started by `start`. The options are `create_app`'s."""
    with _running(models, start, access or Access(), None, lambda app: app, **options) as (
        url,
        http,
    ):
        yield AnyServer(url, http)


@contextlib.contextmanager
def _running(
    models: Models,
    start: Callable[[], Awaitable[None]],
    access: Access,
    limits: ServerLimits | None,
    around: Callable[[ASGIApp], ASGIApp],
    certificates: Certificates | None = None,
    verify: ssl.SSLContext | bool = True,
    **options: Any,
) -> Iterator[tuple[str, httpx.Client]]:
    sock = listen("127.0.0.1", 0)
    limits = limits or ServerLimits()
    draining = Draining()
    app = create_app(models, access=access, limits=limits, draining=draining, **options)
    config = ServerConfig(
        around(app),
        limits,
        certificates,
        draining,
        records=app.state.records,
        metrics=app.state.metrics,
    )
    server = Server(config, models, batches=app.state.batches)
    ready = threading.Event()

    async def serve() -> None:
        await start()
        if app.state.batches is not None:
            await app.state.batches.start()
        ready.set()
        await server.serve(sockets=[sock])
        await models.shutdown()

    def run() -> None:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    scheme = "http" if certificates is None else "https"
    url = f"{scheme}://127.0.0.1:{sock.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=30, verify=verify) as client:
            yield url, client
    finally:
        server.should_exit = True
        thread.join()


Serve = Callable[..., RunningServer]
"""The fixture `serve`: `serve(ScriptedExecutor(...), max_queue=1, ...)`."""
