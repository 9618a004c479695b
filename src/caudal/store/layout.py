"""Where in a store's directory everything is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caudal.store.checked import CheckedFiles
from caudal.store.shelf import OciShelf
from caudal.store.stored import ModelOrigin


def default_home() -> Path:
    """Where models are kept: `CAUDAL_HOME`, or `~/.caudal`."""
    configured = os.environ.get("CAUDAL_HOME", "")
    return Path(configured).expanduser() if configured else Path.home() / ".caudal"


def ollama_directories() -> Sequence[Path]:
    """Where Ollama may keep its models: `OLLAMA_MODELS` alone, if that is set.

    Otherwise its user's directory, or that of the service as Ollama's installer for Linux sets it
    up, whose user is called ollama.
    """
    configured = os.environ.get("OLLAMA_MODELS", "")
    if configured:
        return (Path(configured).expanduser(),)
    return (Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models"))


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The directories of a store.

    `blobs/` and `manifests/` are as Ollama has them, and nothing else is in them, so that it can
    use them, too (it deletes what it doesn't know); `checked/` has notes about blobs that were
    found whole, `downloads/` what is on its way in, and `incoming/` what is being written. Creating
    one of these touches nothing on disk.
    """

    home: Path

    @property
    def shelf(self) -> OciShelf:
        """Models and their files."""
        return OciShelf(self.home, CheckedFiles(self.home / "checked"), ModelOrigin.STORE)

    @property
    def downloads(self) -> Path:
        """Beginnings of blobs, and packages, of pulls that haven't finished."""
        return self.home / "downloads"

    @property
    def incoming(self) -> Path:
        """What is being written, and isn't whole yet."""
        return self.home / "incoming"

    @property
    def lock(self) -> Path:
        """Held by whoever changes which models there are, or deletes blobs."""
        return self.home / "store.lock"

    @property
    def pull_lock(self) -> Path:
        """Held by whoever uses `downloads` for packages."""
        return self.home / "pull.lock"

    def create(self) -> None:
        """Make the directories."""
        shelf = self.shelf
        for directory in (shelf.blobs, shelf.manifests, self.downloads, self.incoming):
            directory.mkdir(parents=True, exist_ok=True)

    def ollama_shelves(self) -> Sequence[OciShelf]:
        """Ollama's models, which are read in place; what is known of them is noted in our home."""
        shelves = []
        for directory in ollama_directories():
            # Another user's may not be readable.
            parts = (directory / "manifests", directory / "blobs")
            readable = all(os.access(part, os.R_OK | os.X_OK) for part in parts)
            if not readable or _is_same(directory, self.home):
                continue
            key = hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:12]
            checked = CheckedFiles(self.home / "checked" / key)
            shelves.append(OciShelf(directory, checked, ModelOrigin.OLLAMA))
        return shelves


def _is_same(directory: Path, home: Path) -> bool:
    try:
        return directory.samefile(home)
    except OSError:
        return False
