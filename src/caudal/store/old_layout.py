"""Models as versions before this kept them, and how they move to today's layout.

There was one JSON file for every model, `manifests/NAME.json`, and files' names in `blobs/` had
endings. Moving renames the blobs and writes manifests; it may be killed at any moment, and goes on
the next time. Where the store can't be written to, its models are read as they are.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from caudal.errors import ModelNameError
from caudal.formats.model_folder import CONFIG
from caudal.store import oci
from caudal.store.facts import REFERENCE, PackageSource, annotations_of
from caudal.store.incoming import BlobInfo, Incoming, write_blob
from caudal.store.names import (
    FileReference,
    KeptReference,
    RegistryName,
    parse_model_name,
    stored_name,
)
from caudal.store.oci import ImageConfig, ImageManifest, Layer
from caudal.store.shelf import KeptModel, OciShelf
from caudal.store.stored import ModelOrigin

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class OldManifest:
    """One of the old JSON files.

    Attributes:
        path: The file.
        reference: What the model was pulled as.
        layers: Its files.
        blobs: What they are called in `blobs/`, by their digests.
        annotations: What else was known of it.
        pulled_at: When.
    """

    path: Path
    reference: KeptReference
    layers: tuple[Layer, ...]
    blobs: Mapping[str, str]
    annotations: Mapping[str, str]
    pulled_at: datetime

    @property
    def name(self) -> RegistryName:
        """Under which name it is kept now."""
        return stored_name(self.reference)

    @classmethod
    def read(cls, path: Path) -> OldManifest | None:
        """Read a file; None where it is damaged, so that nobody can know what it was."""
        try:
            content = json.loads(path.read_bytes())
            if content["schema"] != _SCHEMA:
                return None
            reference = parse_model_name(content["name"])
            if isinstance(reference, FileReference):
                return None
            layers = tuple(
                Layer.of_file(
                    oci.MODEL_TYPE,
                    oci.parse_digest(f"sha256:{file['sha256']}"),
                    int(file["size"]),
                    file["name"],
                )
                for file in content["files"]
            )
            annotations = annotations_of(
                licence=str(content["licence"]),
                description=str(content["description"]),
                sources=[PackageSource(**source) for source in content["sources"]],
            )
            if not isinstance(reference, RegistryName):
                annotations[REFERENCE] = reference.name
            return cls(
                path=path,
                reference=reference,
                layers=layers,
                # Only a name: it may not lead elsewhere.
                blobs={
                    layer.digest: Path(file["blob"]).name
                    for layer, file in zip(layers, content["files"], strict=True)
                },
                annotations=annotations,
                pulled_at=datetime.fromisoformat(content["pulled_at"]).astimezone(),
            )
        except (OSError, KeyError, TypeError, ValueError, ModelNameError):
            return None


class OldShelf:
    """The old files of a store.

    Args:
        shelf: The store's models, as they are kept now.
    """

    is_ours = True

    def __init__(self, shelf: OciShelf) -> None:
        self._shelf = shelf

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be moved."""
        return not self._files()

    def names(self) -> Sequence[RegistryName]:
        """See `Shelf`."""
        return [manifest.name for manifest in self._manifests()]

    def find(self, name: RegistryName) -> KeptModel | None:
        """See `Shelf`."""
        for manifest in self._manifests():
            if manifest.name.key == name.key:
                return self._kept(manifest)
        return None

    def move(self, incoming: Incoming) -> None:
        """Move everything to where it is kept now; the store's lock must be held.

        Raises:
            OSError: The store can't be written to.
        """
        for path in self._files():
            manifest = OldManifest.read(path)
            if manifest is not None:
                self._move(manifest, incoming)
            path.unlink(missing_ok=True)

    def _move(self, manifest: OldManifest, incoming: Incoming) -> None:
        for layer in manifest.layers:
            old, new = self._old_path(manifest, layer), self._shelf.locate(layer)
            self._shelf.checked.forget(old)
            if old.is_file() and not new.exists():
                old.rename(new)
        place = self._shelf.manifests / self._shelf.place(manifest.name).path
        pulled_at = manifest.pulled_at.timestamp()
        if place.exists() and place.stat().st_mtime >= pulled_at:
            return
        # Imported here, so that a store that has moved doesn't load what reads models' files.
        from caudal.store.image_config import config_of

        files = {layer.title or "": self._shelf.locate(layer) for layer in manifest.layers}
        content = json.dumps(config_of(files).to_mapping()).encode()
        config = write_blob(incoming, self._shelf.blobs, [content], None, move=False)
        incoming.write(place, _image(manifest, config).to_bytes(), modified=pulled_at)

    def _files(self) -> Sequence[Path]:
        return sorted(path for path in self._shelf.manifests.glob("*.json") if path.is_file())

    def _manifests(self) -> Sequence[OldManifest]:
        found = map(OldManifest.read, self._files())
        return [manifest for manifest in found if manifest is not None]

    def _kept(self, manifest: OldManifest) -> KeptModel:
        is_folder = any(layer.title == CONFIG for layer in manifest.layers)
        config = ImageConfig(model_format="safetensors" if is_folder else "gguf")
        image = _image(manifest, BlobInfo("sha256:" + 64 * "0", 0))
        return KeptModel(
            name=manifest.name,
            manifest=image,
            raw=image.to_bytes(),
            modified=manifest.pulled_at,
            locate=functools.partial(self._locate, manifest),
            checked=self._shelf.checked,
            origin=ModelOrigin.STORE,
            inline_config=config,
        )

    def _locate(self, manifest: OldManifest, layer: Layer) -> Path:
        moved = self._shelf.locate(layer)
        return moved if moved.exists() else self._old_path(manifest, layer)

    def _old_path(self, manifest: OldManifest, layer: Layer) -> Path:
        return self._shelf.blobs / manifest.blobs[layer.digest]


def _image(manifest: OldManifest, config: BlobInfo) -> ImageManifest:
    layer = Layer(oci.CONFIG_TYPE, config.digest, config.size)
    return ImageManifest(layer, manifest.layers, manifest.annotations)
