"""Adapters of models that come and go: they go with their model, and come back with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from caudal.errors import ModelTooLargeError, UnknownModelError
from caudal.fleet.catalogue import GivenModels
from caudal.fleet.fleet import Fleet
from caudal.fleet.offer import ModelOffer
from caudal.fleet.options import FleetOptions
from caudal.formats.lora.base import AdapterBase
from caudal.loading.options import LoadOptions
from caudal.sampling_params import SamplingParams
from caudal.service.work import CompletionWork
from caudal.workers.in_process import InProcessLauncher
from caudal.workers.launcher import ModelSource
from references.checks import open_reference
from support.adapter_writer import random_adapter, write_gguf_adapter
from support.running_server import running_models
from support.tiny_folder import write_tiny_folder

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, str]:
    """Two models that are alike, and two adapters for them."""
    folder = write_tiny_folder(tmp_path / "a")
    (tmp_path / "b").symlink_to(folder)
    with open_reference(folder) as file:
        base = AdapterBase.of(file)
    shapes = {n: s for n, s in base.shapes.items() if len(s) == 2 and n.startswith("blk.")}
    for name in ("sql", "poet"):
        changes = random_adapter(name, shapes, deviation=0.6).matrices
        path = tmp_path / f"{name}.gguf"
        write_gguf_adapter(path, "llama", {n: (each.a, each.b) for n, each in changes.items()})
    return {path.stem: str(path) for path in tmp_path.iterdir()}


def offer(name: str, path: str, adapters: Mapping[str, str]) -> ModelOffer:
    source = ModelSource(name=path, names=(name,), adapters=dict(adapters))
    return ModelOffer(source=source, names=(name,))


def fleet_of(paths: Mapping[str, str], memory: int = 2**34) -> Fleet:
    """One with room for one of two models, the first of which has an adapter."""
    offers = [offer("a", paths["a"], {"sql": paths["sql"]}), offer("b", paths["b"], {})]
    load = LoadOptions(threads=1, kv_memory=2**20)
    options = FleetOptions(memory=memory, load=load, max_loaded=1, pause=0.0)
    return Fleet(GivenModels(offers), InProcessLauncher(), options)


async def said(fleet: Fleet, name: str) -> list[int]:
    """What a name answers, and that it is answered under it."""
    found = await fleet.resolve(name, "generate")
    try:
        assert found.name == name
        work = CompletionWork(prompts=[list(range(3, 20))], params=PARAMS)
        [running] = await found.service.complete(work)
        deltas = [delta async for deltas in running.deltas() for delta in deltas]
        tokens = [token.id for delta in deltas for token in delta.tokens]
        assert len(tokens) == PARAMS.max_tokens
        return tokens
    finally:
        found.lease.release()


def test_adapters_come_back_with_their_model(paths: dict[str, str]):
    async def check() -> None:
        fleet = fleet_of(paths)
        await fleet.start()
        plain = await said(fleet, "b")
        sql = await said(fleet, "sql")  # which loads its model
        assert sql != plain
        found = await fleet.resolve("a")
        await found.service.load_adapter("poet", paths["poet"])
        found.lease.release()
        poet = await said(fleet, "poet")
        assert poet not in (sql, plain)
        assert await said(fleet, "b") == plain  # which unloads the other one
        [loaded] = fleet.services
        assert (loaded.names, loaded.adapters) == (("b",), ())
        # By their names, though nothing of them is loaded.
        assert await said(fleet, "poet") == poet
        assert await said(fleet, "sql") == sql
        assert await said(fleet, "a") == plain
        found = await fleet.resolve("sql")
        await found.service.unload_adapter("sql")
        found.lease.release()
        await fleet.unload("a")
        with pytest.raises(UnknownModelError, match="serves: a, b, poet"):
            await fleet.resolve("sql")
        assert await said(fleet, "poet") == poet
        await fleet.shutdown()

    asyncio.run(check())


def test_adapters_take_room_of_the_models(paths: dict[str, str]):
    async def held() -> tuple[int, int]:
        fleet = fleet_of(paths)
        await fleet.load("a")
        [model, _] = fleet.members
        assert model.plan is not None
        assert model.stay is not None
        running = model.stay.running
        [adapter] = running.service.adapters
        assert model.held == running.memory.bytes + adapter.bytes
        assert fleet.room == fleet.memory - model.held
        found = await fleet.resolve("a")
        await found.service.load_adapter("poet", paths["poet"])
        found.lease.release()
        assert fleet.room == fleet.memory - running.memory.bytes - 2 * adapter.bytes
        await fleet.shutdown()
        return model.plan.bytes, adapter.bytes

    async def refused(memory: int) -> None:
        fleet = fleet_of(paths, memory)
        with pytest.raises(ModelTooLargeError):
            await fleet.load("a")
        await fleet.shutdown()

    needed, of_one = asyncio.run(held())
    asyncio.run(refused(needed - 1))
    body = {"lora_name": "poet", "lora_path": paths["poet"], "model": "a"}
    for memory, status in ((needed, 400), (needed + 2 * of_one, 200)):
        fleet = fleet_of(paths, memory)
        with running_models(fleet, fleet.start, allow_runtime_lora=True) as server:
            answer = server.http.post("/v1/load_lora_adapter", json=body)
        assert answer.status_code == status, answer.text
        if status == 400:
            assert f"cannot load {paths['poet']}: loading it takes 0." in answer.text


def test_adapters_of_a_model_that_is_not_loaded_can_be_unloaded(paths: dict[str, str]):
    fleet = fleet_of(paths)
    with running_models(fleet, fleet.start, allow_runtime_lora=True) as server:
        for name, status in (("nobody", 404), ("a", 404), ("sql", 200), ("sql", 404)):
            answer = server.http.post("/v1/unload_lora_adapter", json={"lora_name": name})
            assert answer.status_code == status, answer.text
        body = {"lora_name": "poet", "lora_path": paths["poet"], "model": "b"}
        assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 200
        cards = server.http.get("/v1/models").json()["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [
            ("a", None),
            ("b", None),
            ("poet", "b"),
        ]
