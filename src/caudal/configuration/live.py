"""A configuration file that is read anew while the server runs: what may change then does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caudal.configuration.checking import check_names
from caudal.configuration.effective import EffectiveSettings, effective_settings, key_of
from caudal.configuration.file import read_file
from caudal.configuration.models import catalogue_of
from caudal.configuration.pieces import Pieces, no_changes, pieces_of
from caudal.configuration.settings import is_live, settings_fields
from caudal.errors import CaudalError, ConfigurationError
from caudal.fleet.catalogue import Catalogue
from caudal.fleet.fleet import Fleet
from caudal.routes.routed_models import RoutedModels
from caudal.server.limits import ChangingLimits
from caudal.server.served_store import ServedStore
from caudal.store import Store

logger = logging.getLogger("caudal.server")


@dataclass(slots=True, kw_only=True)
class LiveConfiguration:
    """See the module.

    Attributes:
        options: What the command line says; it goes before the file.
        settings: What holds.
        pieces: What was made of it.
        fetch: Sees to it that a model is on this machine.
        fleet: The models.
        routed: The same, by all their names.
        served: The store.
        changing: Has limits change.
    """

    options: Mapping[str, Any]
    settings: EffectiveSettings
    pieces: Pieces
    fetch: Callable[[Store, str], object]
    fleet: Fleet
    routed: RoutedModels
    served: ServedStore
    changing: ChangingLimits
    _loading: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def reload(self) -> None:
        """Read the file, and do what it says now.

        Raises:
            CaudalError: It can't be used, and nothing has changed.
        """
        said, settings, pieces = await asyncio.to_thread(self._read)
        catalogue = await asyncio.to_thread(self._catalogue, settings, pieces)
        await asyncio.to_thread(check_names, catalogue, pieces.routes)
        self._take_keys(settings)
        await self.fleet.change(catalogue)
        self.routed.change(pieces.routes)
        self.changing.change(pieces.limits)
        self.served.refusal = no_changes(settings, self.pieces.access, pieces.models)
        logging.getLogger("caudal").setLevel(settings.values.log_level.upper())
        self._tell(said)
        before = {model.own_name for model in self.pieces.models}
        # The keys are those that everybody is asked for, with what the file says of them now.
        self.pieces = replace(pieces, access=self.pieces.access, keys=self.pieces.keys)
        self.settings = settings
        names = [each.own_name for each in pieces.models if each.preload]
        # Whoever revokes a key next doesn't wait until a model has been loaded.
        loading = asyncio.create_task(self._load(names, before))
        self._loading.add(loading)
        loading.add_done_callback(self._loading.discard)

    def _read(self) -> tuple[EffectiveSettings, EffectiveSettings, Pieces]:
        """What is said now, what of it may hold, and what is made of that."""
        file = self.settings.file
        assert file is not None
        if file.path.exists() and not file.path.is_file():  # a pipe is read once
            raise ConfigurationError(str(file.path), "is no file that could be read again")
        said = effective_settings(self.options, read_file(file.path))
        pieces_of(said)  # what will hold after the next start makes sense, too
        values, origins = dict[str, Any](), dict(said.origins)
        for name in settings_fields():
            if not is_live(name):
                values[name] = getattr(self.settings.values, name)
                origins.pop(name, None)
                if name in self.settings.origins:
                    origins[name] = self.settings.origins[name]
        settings = EffectiveSettings(replace(said.values, **values), origins, said.file)
        return said, settings, pieces_of(settings)

    def _catalogue(self, settings: EffectiveSettings, pieces: Pieces) -> Catalogue:
        store = self.served.store
        for model in pieces.models:
            self.fetch(store, model.name)
        return catalogue_of(settings, pieces.models, pieces.options, pieces.general, store)

    def _take_keys(self, settings: EffectiveSettings) -> None:
        """Raises `ConfigurationError` where the keys contradict those of other places."""
        assert settings.file is not None
        said, held, ring = settings.file.keys, self.pieces.keys, self.pieces.access.ring()
        if held is None or ring is None:
            if said.keys:
                raise ConfigurationError(
                    said.keys[0].place,
                    "the server was started without keys of this file; restart it for the first",
                )
            return
        before, held.keys = held.keys, said
        try:
            ring.reload()
        except ConfigurationError:
            held.keys = before
            raise

    def _tell(self, said: EffectiveSettings) -> None:
        for name in settings_fields():
            if getattr(said.values, name) == getattr(self.settings.values, name):
                continue
            if is_live(name):
                logger.info("%s (%s) has changed", key_of(name), said.place(name))
            else:
                logger.warning(
                    "%s (%s) can't change while the server runs; restart it for that",
                    key_of(name),
                    said.place(name),
                )

    async def _load(self, names: Sequence[str], known: Collection[str]) -> None:
        """Load models that are new, those that fit."""
        for name in names:
            if name not in known:
                try:
                    await self.fleet.load(name)
                except CaudalError as error:
                    logger.warning("%s", error)
