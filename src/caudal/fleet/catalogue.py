"""Which models there are: those named when the server was started, or all of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Protocol

from caudal.errors import ModelNotFoundError
from caudal.fleet.member import ModelOffer
from caudal.store import Store, StoredModel
from caudal.store.known_models import find_known_model
from caudal.store.names import FileReference, parse_model_name
from caudal.workers.launcher import ModelSource, ServingOptions


class Catalogue(Protocol):
    """The models that there are. Both methods may read the disk, so they are run in threads."""

    @property
    def grows(self) -> bool:
        """Whether there may be other models later."""

    def offers(self) -> Sequence[ModelOffer]:
        """All of them, as of now. Raises `StoreError` where that can't be known."""


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


class StoredModels:
    """All models of a store, those that are pulled later too.

    Args:
        store: The store.
        serving: How their answers are read.
    """

    grows = True

    def __init__(self, store: Store, serving: ServingOptions) -> None:
        self._store = store
        self._serving = serving

    def offers(self) -> Sequence[ModelOffer]:
        """See `Catalogue`."""
        return [self._offer(model) for model in self._store.list()]

    def _offer(self, model: StoredModel) -> ModelOffer:
        return ModelOffer(
            source=ModelSource(
                name=model.name,
                names=(model.name, *_known_aliases(model.name)),
                home=str(self._store.home),
                serving=self._serving,
            ),
            names=(model.name,),
            other_names=_known_aliases(model.name),
            size=model.size,
            created=int(model.modified.timestamp()),
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
    return (stored.name, *_known_aliases(stored.name))


def _known_aliases(name: str) -> tuple[str, ...]:
    known = find_known_model(name)
    return () if known is None else known.aliases
