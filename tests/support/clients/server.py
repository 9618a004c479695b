"""Caudal's whole HTTP stack on a free port, with a record of what its clients sent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from caudal.service.model_service import ModelService
from support.clients.recorder import Recorder
from support.running_server import running_server


@dataclass(frozen=True)
class ClientServer:
    """A running server.

    Attributes:
        url: Its address, without `/v1`.
        key: The key that it asks for.
        record: What clients sent.
    """

    url: str
    key: str
    record: Recorder


ServeScript = Callable[..., ClientServer]
"""The fixture `serve_script(script, template=None, *, name="smollm2")`."""

_KEY = "sk-caudal-test"


@contextlib.contextmanager
def client_server(model: ModelService) -> Iterator[ClientServer]:
    """Serve a model until the block ends."""
    record = Recorder()
    with running_server(model, api_key=_KEY, around=record.listen_to) as server:
        yield ClientServer(server.url, _KEY, record)
