"""Directories of models as others write them: Ollama, and versions of Caudal before this one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

_IMAGE = "application/vnd.ollama.image."


def write_ollama_model(
    directory: Path,
    name: str,
    layers: Mapping[str, bytes],
    config: Mapping[str, object] | None = None,
) -> None:
    """Put a model into a directory as Ollama does.

    Args:
        directory: The directory of `blobs` and `manifests`.
        name: `HOST/NAMESPACE/NAME/TAG`.
        layers: Contents by what they are: `model`, `system`, ….
        config: The model's configuration.
    """
    said = {"model_format": "gguf", "model_type": "1B", "file_type": "Q4_0", **(config or {})}
    described = [_blob(directory, _IMAGE + kind, content) for kind, content in layers.items()]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": _blob(
            directory,
            "application/vnd.docker.container.image.v1+json",
            json.dumps(said).encode(),
        ),
        "layers": described,
    }
    path = directory / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest) + "\n")


def write_old_model(home: Path, name: str, files: Mapping[str, bytes]) -> None:
    """Put a model into a store as versions before today's layout did.

    Args:
        home: The store.
        name: As it is shown.
        files: Contents by file name, the first one first.
    """
    (home / "blobs").mkdir(parents=True, exist_ok=True)
    (home / "manifests").mkdir(exist_ok=True)
    stored = []
    for title, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        blob = f"sha256-{sha256}{Path(title).suffix}"
        (home / "blobs" / blob).write_bytes(content)
        stored.append({"name": title, "blob": blob, "size": len(content), "sha256": sha256})
    manifest = {
        "schema": 1,
        "name": name,
        "files": stored,
        "sources": [{"package": "p", "version": "1", "url": "https://h/p.whl", "sha256": None}],
        "licence": "MIT",
        "description": "Old",
        "pulled_at": "2026-01-02T03:04:05+00:00",
    }
    quoted = name.replace(":", "%3A").replace("/", "%2F").replace("=", "%3D")
    (home / "manifests" / f"{quoted}.json").write_text(json.dumps(manifest))


def _blob(directory: Path, media_type: str, content: bytes) -> dict[str, object]:
    sha256 = hashlib.sha256(content).hexdigest()
    path = directory / "blobs" / f"sha256-{sha256}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": len(content)}
