from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import RunningServer, Serve, running_server


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
