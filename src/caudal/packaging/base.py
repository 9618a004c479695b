"""What a recipe builds on: a model of the store, with all that its package has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from caudal.errors import ModelNameError
from caudal.packaging.create_progress import CreateCallback, CreateProgress
from caudal.store import PullProgress, Store, StoredModel
from caudal.store.facts import LICENCE, SOURCES
from caudal.store.names import FileReference, parse_model_name
from caudal.store.oci import Layer
from caudal.store.stored import ModelOrigin

_INHERITED = (LICENCE, SOURCES)
"""What is true of whatever is made of a model's weights."""


@dataclass(frozen=True, slots=True)
class Base:
    """A model that another builds on.

    Attributes:
        stored: The model.
        layers: All its layers, in order, which say that they are from it.
        annotations: What its manifest says besides, as far as it holds for the new model.
    """

    stored: StoredModel
    layers: Sequence[Layer]
    annotations: Mapping[str, str] = field(default_factory=dict)

    def of_type(self, *media_types: str) -> Sequence[Layer]:
        """The layers of one type, or of some."""
        return [layer for layer in self.layers if layer.media_type in media_types]


def base_of(store: Store, name: str, progress: CreateCallback) -> Base:
    """Find a model by name, or pull it.

    Raises:
        ModelNotFoundError: It isn't there, nor can it be pulled; or it is a file.
        StoreError: It couldn't be fetched; or it is damaged.
    """

    def report(event: PullProgress) -> None:
        progress(CreateProgress(event.status, event.digest, event.completed, event.total))

    stored = None
    if not isinstance(parse_model_name(name), FileReference):
        stored = store.ensure(name, report)
    if stored is None or stored.origin is ModelOrigin.FILE:
        raise ModelNameError(f"{name} is the path of a file, not the name of a model")
    manifest, _ = store.manifest(name)
    said = {key: text for key, text in manifest.annotations.items() if key in _INHERITED}
    layers = [replace(layer, from_=stored.ollama_name) for layer in manifest.layers]
    return Base(stored, layers, said)
