"""Deleting what is of no use in a store: blobs without a model, abandoned downloads and notes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from caudal.store.incoming import Incoming
from caudal.store.layout import StoreLayout

GRACE_SECONDS = 3 * 24 * 3600.0
"""Blobs without a model may be those of a pull that will go on, or of one that goes on now."""


@dataclass(frozen=True, slots=True)
class PrunedFile:
    """A file that was deleted.

    Attributes:
        path: Where it was.
        size: Its bytes.
        what: What it was, in words.
    """

    path: Path
    size: int
    what: str


def prune_store(layout: StoreLayout, incoming: Incoming, grace: float | None) -> list[PrunedFile]:
    """Delete what is of no use; the store's lock must be held. See `Store.prune`."""
    before = time.time() - (GRACE_SECONDS if grace is None else grace)
    shelf = layout.shelf
    used = {shelf.locate(layer) for model in shelf.models() for layer in model.manifest.blobs}
    removed = [PrunedFile(path, size, "unfinished file") for path, size in incoming.sweep()]
    for directory, what in ((shelf.blobs, "unused blob"), (layout.downloads, "partial download")):
        for path, size in _old_files(directory, before):
            if path not in used:
                path.unlink(missing_ok=True)
                shelf.checked.forget(path)
                removed.append(PrunedFile(path, size, what))
    for note in (layout.home / "checked").glob("*.json"):
        if not (shelf.blobs / note.stem).exists():
            note.unlink(missing_ok=True)
    for note in (layout.home / "checked").rglob("*.new"):  # whose writer was killed
        if note.lstat().st_mtime < before:
            note.unlink(missing_ok=True)
    return removed


def _old_files(directory: Path, before: float) -> Iterator[tuple[Path, int]]:
    for path in sorted(directory.glob("*")):
        status = path.lstat()
        if not path.is_dir() and status.st_mtime < before:
            # Of a link its own bytes are all that is gone; a download may have holes.
            yield path, min(status.st_size, 512 * status.st_blocks)
