"""What a repository of the Hub says of its model, without its weights.

Of a folder that is config.json, and the sizes of the others; of GGUF files, their headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from caudal.errors import ModelLoadError, ModelNotFoundError, StoreError
from caudal.formats.gguf import stored_tensors
from caudal.formats.model_folder import CONFIG, MAX_JSON_BYTES, ModelFolder, is_part_of_model
from caudal.store.hub.pull import HubSource
from caudal.store.hub.repository import (
    HubRepository,
    explained_hub_errors,
    find_cached,
    look_up,
)
from caudal.store.hub.selection import choose_files
from caudal.store.names import HubReference
from caudal.store.stored import StoredModel, model_of_files
from caudal.store.transfer.http import open_client

FIRST_BYTES = 8 << 20
"""So much of a file is asked for first: headers have vocabularies of up to some megabytes."""

_MOST_BYTES = 256 << 20
_READ_VALUES = "rope_"
"""What names of tensors begin with whose values say what is computed: they are small."""


@dataclass(frozen=True, slots=True)
class HubConfiguration:
    """A model on the Hub, as far as it is known without its weights.

    Attributes:
        folder: config.json alone; None of GGUF files.
        headers: Files as long as the real ones, with nothing but headers; None of a folder.
        weights: Bytes of its weights' files.
    """

    folder: ModelFolder | None
    headers: StoredModel | None
    weights: int


@contextlib.contextmanager
def hub_configuration(reference: HubReference) -> Iterator[HubConfiguration]:
    """Fetch what a repository says of its model, and forget headers at the end.

    Raises:
        ModelNotFoundError: There is no such repository, or nothing in it that was asked for.
        ModelLoadError: A file isn't GGUF.
        StoreError: The Hub can't be asked, or refuses.
    """
    name = f"{reference.organisation}/{reference.repository}"
    repository = look_up(name)
    chosen = choose_files(tuple(repository.files), reference.selection, f"hf:{repository.name}")
    size = sum(repository.files[file].size for file in chosen if _has_weights(file))
    if not chosen[0].lower().endswith(".gguf"):
        yield HubConfiguration(ModelFolder({CONFIG: _config(repository)}), None, size)
        return
    with tempfile.TemporaryDirectory(prefix="caudal-plan-") as folder:
        files = {
            file.rpartition("/")[2]: _header(repository, file, Path(folder)) for file in chosen
        }
        yield HubConfiguration(None, model_of_files(reference.name, files), size)


def _has_weights(file: str) -> bool:
    gguf = file.lower().endswith(".gguf")
    return gguf or (is_part_of_model(file) and file.endswith(".safetensors"))


def _config(repository: HubRepository) -> Path:
    """config.json, in the cache of the Hub's library."""
    if repository.files[CONFIG].size > MAX_JSON_BYTES:
        raise StoreError(f"{CONFIG} of hf:{repository.name} is too large")
    path = find_cached(repository, CONFIG)
    if path is None:
        from huggingface_hub import hf_hub_download

        with explained_hub_errors(repository.name):
            path = Path(hf_hub_download(repository.name, CONFIG, revision=repository.commit))
    return path


def _header(repository: HubRepository, name: str, folder: Path) -> Path:
    """A file with the header of a repository's, and holes where the weights would be."""
    cached = find_cached(repository, name)
    if cached is not None:
        return cached
    if repository.is_offline:
        raise ModelNotFoundError(f"{name} of hf:{repository.name} isn't in the cache")
    path = folder / name.rpartition("/")[2]
    size = repository.files[name].size
    with path.open("wb") as file:
        file.truncate(size)
    done, wanted = 0, min(FIRST_BYTES, size)
    while True:
        _fetch(repository, name, path, done, wanted)
        done = wanted
        try:
            tensors = stored_tensors(path)
        except ModelLoadError:
            if done >= min(size, _MOST_BYTES):
                raise
        else:
            if done >= min((each.offset for each in tensors.values()), default=size):
                break
        wanted = min(2 * done, size)
    for tensor in tensors.values():
        if tensor.name.startswith(_READ_VALUES) and tensor.nbytes <= FIRST_BYTES:
            _fetch(repository, name, path, tensor.offset, tensor.offset + tensor.nbytes)
    return path


def _fetch(repository: HubRepository, name: str, path: Path, first: int, end: int) -> None:
    """Put a range of a repository's file where it belongs."""

    async def read() -> bytes:
        async with (
            open_client(1) as client,
            HubSource(client, repository, name).open((first, end)) as response,
        ):
            if response.status_code != 206:
                raise StoreError(
                    f"the Hugging Face Hub answered {response.status_code} for a part of {name}"
                )
            content = b""
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > end - first:
                    raise StoreError(f"the Hugging Face Hub sent too much of {name}")
            return content

    with explained_hub_errors(repository.name):
        content = asyncio.run(read())
    with path.open("r+b") as file:
        file.seek(first)
        file.write(content)
