"""The tiers that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from caudal.backends.executor import Executor
from caudal.engine.adapters import Adapters
from caudal.engine.config import EngineConfig
from caudal.engine.memory import Memory
from caudal.engine.tiers.disk import DiskTier
from caudal.engine.tiers.links import Links
from caudal.engine.tiers.second_tier import SecondTier
from caudal.engine.tiers.store import PieceStore


def open_tier(
    executor: Executor, memory: Memory, adapters: Adapters, config: EngineConfig
) -> SecondTier:
    """What lies behind the pools.

    Args:
        executor: Has them.
        memory: They, with a tree.
        adapters: Those of the executor, with digests.
        config: Says what there is to be.

    Raises:
        ParameterError: The directory can't be used.
    """
    fingerprint = executor.fingerprint()
    disk = None
    if config.prefix_store is not None:
        directory = Path(config.prefix_store)
        disk = DiskTier(directory, fingerprint, config.prefix_store_size)
    store = PieceStore(config.prefix_memory, disk, executor.info.block_bytes)
    return SecondTier(executor, memory, Links(fingerprint, adapters.digest), store)
