from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from caudal.server.auth import Access
from caudal.server.limits import ServerLimits
from support.fake_model import ScriptedExecutor, changed, serve_fake
from support.fake_template import tool_chat
from support.running_server import RunningServer, Serve, running_server


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a scripted executor: `serve(ScriptedExecutor(...), max_queue=1, ...)`."""
    with contextlib.ExitStack() as stack:

        def start(
            executor: ScriptedExecutor,
            *,
            api_key: str | None = None,
            access: Access | None = None,
            limits: ServerLimits | None = None,
            strict_fields: bool = False,
            **options: object,
        ) -> RunningServer:
            model = changed(serve_fake(executor, **options), strict=strict_fields)
            served = running_server(
                model,
                api_key=api_key,
                access=access,
                limits=limits,
                strict_fields=strict_fields,
            )
            return stack.enter_context(served)

        yield start


@pytest.fixture(scope="module")
def hello() -> Iterator[RunningServer]:
    """A server whose model always says `Hello, día!`."""
    with running_server(serve_fake(ScriptedExecutor(script="Hello, día!".encode()))) as server:
        yield server


@pytest.fixture
def converse() -> Iterator[Callable[..., RunningServer]]:
    """Serves a model that thinks and calls tools, and always says `script`."""
    with contextlib.ExitStack() as stack:

        def start(script: str, **options: object) -> RunningServer:
            executor = ScriptedExecutor(script=script.encode(), num_blocks=2048)
            model = serve_fake(executor, **{"max_model_len": 16384} | options)
            return stack.enter_context(running_server(changed(model, chat=tool_chat())))

        yield start
