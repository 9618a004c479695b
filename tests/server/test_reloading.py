from __future__ import annotations

import asyncio

import pytest

from caudal.server import reloading
from caudal.server.reloading import Reloader


def test_nothing_waits_for_what_takes_long(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(reloading, "notify_reloading", lambda: said.append("reloading"))
    monkeypatch.setattr(reloading, "notify_ready", lambda: said.append("ready"))

    async def run() -> None:
        fetched, reloader = asyncio.Event(), Reloader()

        async def fetch() -> None:
            said.append("configuration")
            await fetched.wait()

        async def settle() -> list[str]:
            for _ in range(10):
                await asyncio.sleep(0)
            new = said.copy()
            said.clear()
            return new

        reloader.add("configuration", fetch)
        reloader.add("certificates", lambda: said.append("certificates"))
        running = asyncio.create_task(reloader.run())
        reloader.ask()
        assert await settle() == ["reloading", "configuration", "certificates"]
        for _ in range(2):
            reloader.ask()
            assert await settle() == ["reloading", "certificates"]
        fetched.set()
        assert await settle() == ["configuration", "ready"]  # once for both who asked meanwhile
        running.cancel()

    asyncio.run(run())
