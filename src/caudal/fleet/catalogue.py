"""Which models there are: those named when the server was started, or all of the store."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Protocol

from caudal.errors import CaudalError, ModelNotFoundError, StoreError
from caudal.fleet.offer import ModelOffer
from caudal.loading.options import LoadOptions
from caudal.store import ModelOrigin, Store, StoredModel
from caudal.store.known_models import find_known_model
from caudal.store.names import FileReference, parse_kept_name, parse_model_name
from caudal.workers.launcher import ModelSource, ServingOptions

logger = logging.getLogger("caudal.fleet")

MAX_NAME_LENGTH = 512
"""Longer names are nobody's."""


class Catalogue(Protocol):
    """The models that there are.

    `offers` and `mark` may read the disk, so they are run in threads.
    """

    @property
    def grows(self) -> bool:
        """Whether there may be other models later."""

    def offers(self) -> Sequence[ModelOffer]:
        """All of them, as of now. Raises `StoreError` where that can't be known."""

    def mark(self) -> Hashable:
        """What is another when there are others; it costs less than `offers`."""

    def full_name(self, name: str) -> str | None:
        """A name with all that may be left out of it, in lower case; None where it has no more."""


class GivenModels:
    """The models that somebody named.

    Args:
        offers: They.
    """

    grows = False

    def __init__(self, offers: Sequence[ModelOffer]) -> None:
        self._offers = tuple(offers)

    def offers(self) -> Sequence[ModelOffer]:
        """See `Catalogue`."""
        return self._offers

    def mark(self) -> Hashable:
        """See `Catalogue`."""
        return None

    def full_name(self, name: str) -> str | None:
        """See `Catalogue`."""
        return _full_name(name) if len(name) <= MAX_NAME_LENGTH else None


class StoredModels:
    """All models of a store, those that are pulled later too.

    Args:
        store: The store.
        serving: How their answers are read.
        load: How they run; None: as the fleet has it.
    """

    grows = True

    def __init__(
        self, store: Store, serving: ServingOptions, load: LoadOptions | None = None
    ) -> None:
        self._store = store
        self._serving = serving
        self._load = load
        self._told: set[str] = set()

    def offers(self) -> Sequence[ModelOffer]:
        """See `Catalogue`. One that is damaged keeps nobody from the others."""
        return [self._offer(model) for model in self._store.list(self._tell)]

    def _tell(self, damage: StoreError) -> None:
        if str(damage) not in self._told:
            self._told.add(str(damage))
            logger.warning("%s", damage)

    def mark(self) -> Hashable:
        """See `Catalogue`."""
        return self._store.mark()

    def full_name(self, name: str) -> str | None:
        """See `Catalogue`."""
        return _full_name(name) if len(name) <= MAX_NAME_LENGTH else None

    def _offer(self, model: StoredModel) -> ModelOffer:
        others = _kept_names(model)
        return ModelOffer(
            source=ModelSource(
                name=model.name,
                names=(model.name, *others),
                home=str(self._store.home),
                serving=self._serving,
            ),
            names=(model.name,),
            other_names=others,
            size=model.size,
            created=int(model.modified.timestamp()),
            version=model.digest,
            load=self._load,
        )


def given_offer(
    name: str,
    *,
    names: Sequence[str] = (),
    adapters: Mapping[str, str] | None = None,
    store: Store,
    serving: ServingOptions,
    pinned: bool,
    keep_alive: float | None,
    load: LoadOptions | None = None,
) -> ModelOffer:
    """A model that somebody named.

    Args:
        name: A name that the store resolves, or a path.
        names: Names that requests are to use; by default `name`.
        adapters: Those that it begins with, by name, with their paths.
        store: Where models are kept.
        serving: How its answers are read.
        pinned: See `ModelOffer`.
        keep_alive: See `ModelOffer`.
        load: See `ModelOffer`.

    Raises:
        ModelNotFoundError, StoreError: It isn't here, or is damaged.
    """
    stored = store.resolve(name)
    others = () if names else _other_names(name, stored)
    shown = tuple(names) or (name,)
    return ModelOffer(
        source=ModelSource(
            name=name,
            names=shown,
            home=str(store.home),
            adapters=dict(adapters or {}),
            serving=serving,
        ),
        names=shown,
        other_names=others,
        size=stored.size,
        created=int(stored.modified.timestamp()),
        pinned=pinned,
        keep_alive=keep_alive,
        version=stored.digest,
        load=load,
    )


def _other_names(name: str, stored: StoredModel) -> tuple[str, ...]:
    """What else a model may be called: as the store does, or without its folder and ending."""
    try:
        reference = parse_model_name(name)
    except ModelNotFoundError:
        return ()
    if isinstance(reference, FileReference):
        path = PurePath(name)
        return (path.name, path.stem) if path.suffix.lower() == ".gguf" else (path.name,)
    return (stored.name, *_kept_names(stored))


def _kept_names(stored: StoredModel) -> tuple[str, ...]:
    """Other names of a model of the store: in full, as Ollama shows it, and those that we know."""
    # What Ollama has under such a name is another model, perhaps.
    known = find_known_model(stored.name) if stored.origin is ModelOrigin.STORE else None
    aliases = () if known is None else known.aliases
    full = (parse_kept_name(alias).full for alias in aliases)
    names = (stored.full_name, stored.ollama_name, *aliases, *full)
    return tuple(name for name in dict.fromkeys(names) if name and name != stored.name)


@lru_cache(1024)
def _full_name(name: str) -> str | None:
    try:
        return parse_kept_name(name).key
    except CaudalError:
        return None
