"""Whether names lead somewhere, before anything is started."""

from __future__ import annotations

from collections.abc import Iterable

from caudal.configuration.effective import EffectiveSettings
from caudal.configuration.models import catalogue_of
from caudal.configuration.pieces import Pieces
from caudal.errors import CaudalError
from caudal.fleet.catalogue import Catalogue, GivenModels
from caudal.routes.rules import Routes
from caudal.store import Store


def check_names(catalogue: Catalogue, routes: Routes, others: Iterable[str] = ()) -> None:
    """See that all names lead to models that there are, and that none is a model's.

    Args:
        catalogue: The models.
        routes: The names.
        others: Names of more models.

    Raises:
        ConfigurationError: One doesn't, or is.
        StoreError: It can't be known which models there are.
    """
    names = {name.lower() for name in others}
    for each in catalogue.offers():
        for name in (*each.names, *each.other_names, *each.source.adapters):
            names.add(name.lower())
    routes.check_names(lambda name: name.lower() in names or catalogue.full_name(name) in names)


def check_routes(settings: EffectiveSettings, pieces: Pieces, store: Store) -> set[str]:
    """The same, where not all models need be on this machine.

    Args:
        settings: They.
        pieces: What was made of them.
        store: Where models are.

    Returns:
        The names of those that would have to be fetched.

    Raises:
        ConfigurationError: See `check_names`.
    """
    missing: set[str] = set()
    others: list[str] = []
    for model in pieces.models:
        try:
            store.resolve(model.name)
        except CaudalError:
            missing.add(model.name)
            others += [model.name, *model.names, *model.lora]
    here = [model for model in pieces.models if model.name not in missing]
    nothing = pieces.models and not here  # and not all of the store
    catalogue = (
        GivenModels([])
        if nothing
        else catalogue_of(settings, here, pieces.options, pieces.general, store)
    )
    check_names(catalogue, pieces.routes, others)
    return missing
