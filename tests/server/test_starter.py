"""Requests that come at once are begun a few in each turn of the event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from caudal.server.starter import AT_ONCE, Starter


def test_a_few_are_begun_in_each_turn_and_none_whose_client_has_gone() -> None:
    async def run() -> None:
        starter, begun = Starter(), list[int]()

        def come(number: int, path: str = "/v1/completions") -> Any:
            cycle: Any = SimpleNamespace(scope={"path": path}, disconnected=False)
            starter.start(cycle, lambda: begun.append(number))
            return cycle

        for burst in range(2):  # the second comes when all is quiet again
            begun.clear()
            cycles = [come(number) for number in range(10 * AT_ONCE)]
            assert begun == list(range(AT_ONCE))  # at once, where nobody waits
            for cycle in cycles[AT_ONCE : 5 * AT_ONCE]:
                cycle.disconnected = True
            come(-1, "/health")
            assert begun[-1] == -1
            seen = len(begun)
            while len(begun) < 6 * AT_ONCE + 1:
                await asyncio.sleep(0)
                assert len(begun) - seen <= AT_ONCE
                seen = len(begun)
            rest = [*range(AT_ONCE), *range(5 * AT_ONCE, 10 * AT_ONCE)]
            assert sorted(begun) == [-1, *rest], burst
            await asyncio.sleep(0.01)

    asyncio.run(run())
