"""A model's weights, whichever files they are in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from caudal.formats.gguf import GGUFFile
from caudal.formats.model_file import ModelFile
from caudal.store import StoredModel


@contextlib.contextmanager
def open_weights(stored: StoredModel) -> Iterator[ModelFile]:
    """Open a model's weights, and close them at the end.

    Raises:
        ModelLoadError: They can't be read; names what is wrong.
    """
    folder = stored.folder
    if folder is None:
        with GGUFFile.open(stored.path, stored.paths) as file:
            yield file
    else:
        # Imported here, so that a server that lists models needn't know all families.
        from caudal.formats.huggingface.model import open_folder

        with open_folder(folder) as model:
            yield model
