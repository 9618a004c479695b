"""A configuration that is read anew: what may change does, and what is wrong changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from caudal.configuration.effective import effective_settings
from caudal.configuration.file import read_file
from caudal.configuration.live import LiveConfiguration
from caudal.configuration.models import catalogue_of
from caudal.configuration.pieces import fleet_options, pieces_of
from caudal.errors import ConfigurationError, ModelNotFoundError, UnknownModelError
from caudal.fleet.fleet import Fleet
from caudal.routes.routed_models import RoutedModels
from caudal.server.limits import ChangingLimits, ServerLimits
from caudal.server.served_store import ServedStore
from caudal.store import Store, StoredModel
from support.fake_launcher import FakeLauncher, FakeModel


def key(name: str) -> str:
    return f'[keys.{name}]\nhash = "sha256:{hashlib.sha256(name.encode()).hexdigest()}"\n'


BEFORE = f"""
[server]
port = 1234
[limits]
drain-timeout = 3
[[models]]
model = "one"
aliases = ["first"]
[[models]]
model = "two"
preload = false
{key("alice")}
"""
AFTER = f"""
[server]
port = 4321
[limits]
drain-timeout = 4
[[models]]
model = "one"
aliases = ["uno"]
[[models]]
model = "three"
max-num-seqs = 7
{key("bob")}
max-n = 3
"""


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(store: Store, name: str) -> StoredModel:
        return StoredModel(
            name, (Path(name),), (name,), 1, (), "", "", (), datetime.fromtimestamp(0, UTC)
        )

    monkeypatch.setattr(Store, "resolve", resolve)


def fetch(store: Store, name: str) -> None:
    if name == "lost":
        raise ModelNotFoundError("there is no model 'lost'")


class Server:
    """What a server has of a configuration."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.limits: list[ServerLimits] = []
        settings = effective_settings({}, read_file(file))
        made = pieces_of(settings)
        store = Store(file.parent)
        models = {name: FakeModel(open_seconds=0.01) for name in ("one", "two", "three")}
        catalogue = catalogue_of(settings, made.models, made.options, made.general, store)
        self.launcher = FakeLauncher(models)
        self.fleet = Fleet(catalogue, self.launcher, fleet_options(settings, made.general.load))
        self.routed = RoutedModels(self.fleet, made.routes)
        changing = ChangingLimits()
        changing.followers.append(self.limits.append)
        self.live = LiveConfiguration(
            options={},
            settings=settings,
            pieces=made,
            fetch=fetch,
            fleet=self.fleet,
            routed=self.routed,
            served=ServedStore(store, None),
            changing=changing,
        )
        ring = made.access.ring()
        assert ring is not None
        self.keys = ring


@pytest.mark.usefixtures("stored")
def test_what_may_change_does_and_running_requests_are_unharmed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "caudal.toml"
    file.write_text(BEFORE)

    async def run() -> None:
        server = Server(file)
        await server.fleet.start(["one", "two"])
        revoked: list[str] = []
        server.keys.on_revoked.append(lambda tenant: revoked.append(tenant.name))
        kept = await server.routed.resolve("first")
        leaving = await server.routed.resolve("two")
        file.write_text(AFTER)
        await server.live.reload()
        assert list(server.routed.names) == ["one", "three", "uno"]
        assert (await server.routed.resolve("uno")).service is kept.service
        while "three" not in server.launcher.loaded:
            await asyncio.sleep(0.01)
        assert server.fleet.members[-1].offer.load.max_num_seqs == 7  # type: ignore[union-attr]
        with pytest.raises(UnknownModelError):
            await server.routed.resolve("two")
        assert "two" in server.launcher.loaded, "somebody still asks it"
        leaving.lease.release()
        while "two" in server.launcher.loaded:
            await asyncio.sleep(0.01)
        assert server.fleet.healthy
        assert [each.name for each in await server.fleet.refresh()] == ["one", "three"]
        assert [each.drain_seconds for each in server.limits] == [4]
        assert revoked == ["alice"]
        bob = server.keys.lookup(b"bob")
        assert bob is not None
        assert bob.rules.max_n == 3
        assert server.live.settings.values.port == 1234
        await server.fleet.shutdown()

    with caplog.at_level("INFO", "caudal"):
        asyncio.run(run())
    assert f"port ({file}, line 3) can't change while the server runs" in caplog.text
    assert f"drain-timeout ({file}, line 5) has changed" in caplog.text


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (AFTER + "[limits]\n", "line 16: Cannot declare"),
        (AFTER.replace("port = 4321", "port = 'x'"), "line 3: server.port: "),
        (AFTER + "[routes.r]\nmodels = [{ model = 'two' }]", "line 16: 'r' leads to 'two'"),
        (AFTER.replace("uno", "three"), "line 8: there is a model 'three' already"),
        (AFTER.replace('"three"', '"lost"'), "no model 'lost'"),
        (AFTER + key("carol").replace(hashlib.sha256(b"carol").hexdigest(), "0" * 63), "sha256"),
    ],
)
def test_what_is_wrong_changes_nothing(tmp_path: Path, text: str, words: str):
    file = tmp_path / "caudal.toml"
    file.write_text(BEFORE)

    async def run() -> None:
        server = Server(file)
        await server.fleet.start(["one"])
        file.write_text(text)
        with pytest.raises((ConfigurationError, ModelNotFoundError), match=words) as caught:
            await server.live.reload()
        assert words in str(caught.value)
        assert list(server.routed.names) == ["one", "two", "first"]
        assert server.keys.lookup(b"alice") is not None
        assert server.keys.lookup(b"bob") is None
        assert server.limits == []
        await server.fleet.shutdown()

    asyncio.run(run())


@pytest.mark.usefixtures("stored")
def test_keys_go_while_a_model_is_being_loaded_and_pipes_are_not_waited_for(tmp_path: Path):
    file = tmp_path / "caudal.toml"
    file.write_text(BEFORE)

    async def run() -> None:
        server = Server(file)
        await server.fleet.start(["one"])
        for model in server.launcher.models.values():
            model.open_seconds = 3600.0
        file.write_text(BEFORE.replace('"two"\npreload = false', '"three"'))
        await asyncio.wait_for(server.live.reload(), 30)
        assert server.keys.lookup(b"alice") is not None
        file.write_text(AFTER)
        await server.live.reload()
        assert server.keys.lookup(b"alice") is None
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(ConfigurationError, match="is no file that could be read again"):
            await server.live.reload()
        await server.fleet.shutdown()

    asyncio.run(run())
