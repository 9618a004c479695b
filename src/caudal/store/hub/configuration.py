"""What a repository of the Hub says of its model, without its weights: config.json, and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from caudal.errors import ModelNotFoundError, StoreError
from caudal.formats.model_folder import CONFIG, MAX_JSON_BYTES, ModelFolder, is_part_of_model
from caudal.store.hub.repository import explained_hub_errors, find_cached, look_up
from caudal.store.hub.selection import choose_files
from caudal.store.names import HubReference


@dataclass(frozen=True, slots=True)
class HubConfiguration:
    """A model on the Hub.

    Attributes:
        folder: config.json alone.
        weights: Bytes of its weights' files.
    """

    folder: ModelFolder
    weights: int


def fetch_configuration(reference: HubReference) -> HubConfiguration:
    """Fetch the config.json of a repository, into the Hub's library's cache.

    Raises:
        ModelNotFoundError: There is no such repository, or what was asked for has no config.json.
        StoreError: The Hub can't be asked, or refuses.
    """
    name = f"{reference.organisation}/{reference.repository}"
    repository = look_up(name)
    what = f"hf:{repository.name}"
    chosen = choose_files(tuple(repository.files), reference.selection, what)
    size = sum(repository.files[file].size for file in chosen)
    if chosen[0].lower().endswith(".gguf"):
        raise ModelNotFoundError(
            f"only its file says what {chosen[0]} of {what} takes ({size / 1e9:.1f} GB). Fetch it "
            f"with: caudal pull {reference.name}, or plan with the repository that it was made of, "
            "which has a config.json, and --quant"
        )
    weights = sum(
        repository.files[file].size
        for file in chosen
        if is_part_of_model(file) and file.endswith(".safetensors")
    )
    if repository.files[CONFIG].size > MAX_JSON_BYTES:
        raise StoreError(f"{CONFIG} of {what} is too large")
    path = find_cached(repository, CONFIG)
    if path is None:
        from huggingface_hub import hf_hub_download

        with explained_hub_errors(name):
            path = Path(hf_hub_download(repository.name, CONFIG, revision=repository.commit))
    return HubConfiguration(ModelFolder({CONFIG: path}), weights)
