"""Finding a model by its name: in our store, in Ollama's, or on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store.layout import StoreLayout
from caudal.store.names import (
    FileReference,
    KeptReference,
    RegistryName,
    parse_kept_name,
    parse_model_name,
    stored_name,
)
from caudal.store.old_layout import OldShelf
from caudal.store.pullable import known_model
from caudal.store.shelf import KeptModel, Shelf
from caudal.store.stored import StoredModel, model_file


class Lookup:
    """Finds models by name.

    Args:
        layout: The store.
        move: Moves what is in the old layout; raises `StoreError` where it can't.
    """

    def __init__(self, layout: StoreLayout, move: Callable[[], None]) -> None:
        self._layout = layout
        self._move = move

    def shelves(self) -> Sequence[Shelf]:
        """Where models are looked for, in order; what is in the old layout moves first."""
        ours: list[Shelf] = [self._layout.shelf]
        old = OldShelf(self._layout.shelf)
        if not old.is_empty:
            try:
                self._move()
            except StoreError:
                ours.append(old)  # it can't be written to, and is read as it is
        return [*ours, *self._layout.ollama_shelves()]

    def names(self) -> Iterator[tuple[Shelf, RegistryName]]:
        """All models, and where they are; one that has the name of an earlier one isn't found."""
        seen = set()
        for shelf in self.shelves():
            for name in shelf.names():
                if name.key not in seen:
                    seen.add(name.key)
                    yield shelf, name

    def find(self, name: str) -> KeptModel | StoredModel | None:
        """What is on this machine of a name: in a store, or, of a path, a file."""
        reference = parse_model_name(name)
        if isinstance(reference, FileReference):
            return model_file(name, reference.path)
        kept = self._find_kept(reference)
        # `models/thing` may be a name, and may be a path.
        if kept is None and "/" in name and os.path.exists(name):  # noqa: PTH110 - never raises
            return model_file(name, Path(name))
        return kept

    def _find_kept(self, reference: KeptReference) -> KeptModel | None:
        name = stored_name(reference)
        known = known_model(reference)
        for shelf in self.shelves():
            model = shelf.find(name)
            # Other names that Caudal knows stand for what it pulls itself, and not for what
            # somebody else has under the model's name.
            if model is None and known is not None and shelf.is_ours:
                model = shelf.find(parse_kept_name(known.name))
            if model is not None:
                return model
        return None

    def kept(self, name: str) -> KeptModel:
        """A model of a store, ours or Ollama's. Raises `ModelNotFoundError` where it isn't one."""
        found = self.find(name)
        if isinstance(found, StoredModel):
            raise ModelNotFoundError(
                f"{name} is a file outside the store, which has no hashes, and which Caudal "
                "leaves alone"
            )
        if found is None:
            raise ModelNotFoundError(f"{name} is not in the store; to see what is: caudal list")
        return found
