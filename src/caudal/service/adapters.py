"""The adapters of a model, by name: loaded and unloaded while it runs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from caudal.engine.adapters import EngineAdapter
from caudal.errors import AdapterExistsError, ModelLoadError, UnknownAdapterError
from caudal.formats.lora.adapter import Adapter
from caudal.loading.packaged import OWN_ADAPTER
from caudal.service.info import AdapterInfo

logger = logging.getLogger("caudal.service")

ReadAdapter = Callable[[str, str], Adapter]
"""Reads an adapter of the model: a function of its name and its path.

Raises `AdapterNotFoundError` where there is nothing, and `ModelLoadError` where it can't be used.
"""


class AdapterEngine(Protocol):
    """What adapters need of an engine."""

    @property
    def adapters(self) -> Sequence[EngineAdapter]:
        """Those that requests may ask for, in the order of loading."""

    async def load_adapter(self, name: str, adapter: Adapter) -> EngineAdapter:
        """Take an adapter; raises `ModelLoadError`, `EngineDeadError`."""

    def unload_adapter(self, number: int) -> None:
        """Let no more requests have an adapter; it is gone once those that it has have ended."""


class ModelAdapters:
    """The adapters of one model.

    Args:
        engine: Runs the model; may have some already.
        read: Reads those that are loaded later.
        taken: Names of the model itself.
    """

    def __init__(self, engine: AdapterEngine, read: ReadAdapter, taken: Sequence[str]) -> None:
        self._engine = engine
        self._read = read
        self._taken = frozenset(taken)
        self._guard = threading.Lock()  # held for microseconds
        named = {each.name: each for each in engine.adapters}
        own = named.pop(OWN_ADAPTER, None)
        self._own = None if own is None else own.number
        self._infos = {name: _info(each) for name, each in named.items()}

    @property
    def infos(self) -> Sequence[AdapterInfo]:
        """Those that requests may name, in the order of loading."""
        return tuple(self._infos.values())

    def number(self, name: str | None) -> int | None:
        """What the engine calls an adapter; where none is named, that which belongs to the model.

        Raises:
            UnknownAdapterError: There is none of this name.
        """
        if name is None:
            return self._own
        found = self._infos.get(name)
        if found is None:
            raise UnknownAdapterError(name)
        return found.number

    async def load(
        self, name: str, path: str, *, replace: bool = False, room: int | None = None
    ) -> None:
        """Load an adapter; requests that come after it are answered with it.

        Args:
            name: What requests will call it.
            path: Its file or folder.
            replace: It may take the place of one of the same name, with which requests that have
                come before are still answered.
            room: Bytes that it may take; None for as many as it does.

        Raises:
            AdapterExistsError: The name is taken.
            AdapterNotFoundError: There is no such file.
            ModelLoadError: It can't be used with this model, or takes more than it may.
            EngineDeadError: The engine has stopped.
        """
        self._check_name(name, replace=replace)
        # It goes on where the call is cancelled: what is loaded has a name.
        loading = self._load(name, path, replace=replace, room=room)
        await asyncio.shield(asyncio.ensure_future(loading))

    async def _load(self, name: str, path: str, *, replace: bool, room: int | None) -> None:
        adapter = await asyncio.to_thread(self._read, name, path)
        if room is not None and adapter.nbytes > room:
            raise ModelLoadError(
                path,
                f"loading it takes {adapter.nbytes / 1e6:.1f} MB, but {room / 1e6:.1f} MB are left "
                "of the memory that all models may have. Unload a model or an adapter, or raise "
                "--memory.",
            )
        made = await self._engine.load_adapter(name, adapter)
        with self._guard:
            try:
                self._check_name(name, replace=replace)  # others may have come meanwhile
            except AdapterExistsError:
                self._engine.unload_adapter(made.number)
                raise
            old = self._infos.get(name)
            self._infos[name] = _info(made)
        if old is not None:
            self._engine.unload_adapter(old.number)
        logger.info("adapter %r: loaded from %s", name, path)

    def unload(self, name: str) -> None:
        """Take requests for an adapter no more; those that it has go on to their ends.

        Raises:
            UnknownAdapterError: There is none of this name.
        """
        with self._guard:
            found = self._infos.pop(name, None)
        if found is None:
            raise UnknownAdapterError(name)
        self._engine.unload_adapter(found.number)
        logger.info("adapter %r: unloaded", name)

    def _check_name(self, name: str, *, replace: bool) -> None:
        """Raises `AdapterExistsError` where no adapter may be loaded under a name."""
        if name in self._taken:
            raise AdapterExistsError(name, is_adapter=False)
        if name in self._infos and not replace:
            raise AdapterExistsError(name)


def _info(adapter: EngineAdapter) -> AdapterInfo:
    return AdapterInfo(
        name=adapter.name,
        number=adapter.number,
        path=adapter.source,
        created=int(time.time()),
        rank=adapter.loaded.rank,
        bytes=adapter.loaded.bytes,
    )
