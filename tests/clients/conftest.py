"""Client programs as their users run them; `make test-clients` installs and runs them.

Each has a new home and project folder, the server's address and a key. With `CAUDAL_RECORDINGS` set
to a folder, all that they send is written there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caudal.service.model_service import ModelService
from support.clients.home import Home
from support.clients.programs import Programs
from support.clients.scripted_model import Script, scripted_model
from support.clients.server import ClientServer, ServeScript, client_server

CONTEXT = 65536


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the programs; left out unless asked for with `-m clients`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def programs() -> Programs:
    return Programs()


@pytest.fixture
def home(tmp_path: Path, programs: Programs) -> Home:
    return Home.create(tmp_path, programs)


Start = Callable[[ModelService], ClientServer]


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Serves a model until the test ends."""
    servers: list[ClientServer] = []
    with contextlib.ExitStack() as stack:

        def start(model: ModelService) -> ClientServer:
            servers.append(stack.enter_context(client_server(model)))
            return servers[-1]

        yield start
    if folder := os.environ.get("CAUDAL_RECORDINGS"):
        for server in servers:
            server.record.save(
                Path(folder), re.sub(r"[^\w.-]+", "_", f"{request.path.stem}-{request.node.name}")
            )


@pytest.fixture
def serve_script(smollm2_path: Path, start: Start) -> ServeScript:
    """Serves a model that answers by a script."""

    def serve(
        script: Script, template: str | None = None, *, name: str = "smollm2"
    ) -> ClientServer:
        model = scripted_model(
            smollm2_path, script, name=name, template=template, max_model_len=CONTEXT
        )
        return start(model)

    return serve
