"""The registry: which model a name means, and what may be asked of it."""

import asyncio
from dataclasses import replace

import pytest

from caudal.errors import UnknownModelError, UnsupportedTaskError
from caudal.models.program import Task
from caudal.service.model_service import ModelService
from caudal.service.registry import ModelRegistry
from caudal.service.service import Service
from support.fake_model import ScriptedExecutor, changed, serve_fake


def other_model() -> ModelService:
    """It embeds, and nothing else."""
    model = serve_fake(ScriptedExecutor(), ("embedder",))
    loaded = replace(model.facts.loaded, tasks=frozenset(("embed",)))
    return changed(model, facts=replace(model.facts, loaded=loaded))


def test_models_are_found_by_any_of_their_names():
    async def check() -> None:
        registry = ModelRegistry()
        assert not registry.ready
        first, second = serve_fake(ScriptedExecutor(), ("one", "uno")), other_model()
        registry.add(first)
        registry.add(second)
        assert registry.ready
        assert registry.healthy
        assert registry.services == [first, second]

        async def found(name: str | None, task: Task | None = None) -> tuple[str, Service]:
            answer = await registry.resolve(name, task)
            return answer.name, answer.service

        assert await found("uno", "generate") == ("uno", first)
        for nothing in (None, ""):
            assert await found(nothing) == ("one", first)
        assert await found("embedder", "embed") == ("embedder", second)
        with pytest.raises(UnsupportedTaskError, match=r"can't generate text\. It can make embedd"):
            await registry.resolve("embedder", "generate")
        with pytest.raises(UnknownModelError, match="serves: one, uno, embedder"):
            await registry.resolve("two")
        await registry.shutdown()
        assert not registry.healthy

    asyncio.run(check())
