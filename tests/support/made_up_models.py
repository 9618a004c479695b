"""A server of made-up models, each loaded when a request first names it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from caudal.fleet.fleet import Fleet
from caudal.fleet.options import FleetOptions
from support.fake_launcher import FakeLauncher, FakeModel, Offered, offers
from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import AnyServer, running_models


@contextlib.contextmanager
def serving(
    memory: int = 30, app: Mapping[str, Any] = MappingProxyType({}), **models: FakeModel
) -> Iterator[tuple[AnyServer, FakeLauncher]]:
    """A server of made-up models whose service is started with each load; `app` is options of
    `create_app`.
    """
    launcher = FakeLauncher(models)
    fleet = Fleet(Offered(offers(list(models))), launcher, FleetOptions(memory=memory))
    with running_models(fleet, fleet.start, **app) as server:
        yield server, launcher
    assert launcher.alive == []


def says(text: str, **more: Any) -> FakeModel:
    """A model that always says the same."""
    made = FakeModel(read_seconds=0, open_seconds=0, stop_seconds=0, **more)
    made.make_service = lambda name: serve_fake(ScriptedExecutor(script=text.encode()), (name,))
    return made
