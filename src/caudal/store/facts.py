"""What a model's manifest says besides its layers: where it came from, its licence, its name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from caudal.store.oci import ImageManifest

REFERENCE = "caudal.reference"
"""The annotation with what was asked for, where the model is kept under another name."""
SOURCES = "caudal.sources"
"""The annotation with the packages that a model was taken from, as JSON."""
LICENCE = "org.opencontainers.image.licenses"
DESCRIPTION = "org.opencontainers.image.description"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A package that the model, or a chunk of it, was taken from.

    Attributes:
        package: Its name.
        version: Its version.
        url: Where it was downloaded, without credentials.
        sha256: Hash of the wheel in hex, or None if the index gave none.
    """

    package: str
    version: str
    url: str
    sha256: str | None


def annotations_of(
    *, licence: str, description: str, sources: Sequence[PackageSource]
) -> dict[str, str]:
    """A manifest's annotations.

    Args:
        licence: The licence's name; empty where nobody said.
        description: One line about the model; empty where there is none.
        sources: Where it came from.
    """
    annotations = {
        LICENCE: licence,
        DESCRIPTION: description,
        SOURCES: json.dumps([asdict(source) for source in sources]) if sources else "",
    }
    return {key: value for key, value in annotations.items() if value}


def read_sources(manifest: ImageManifest) -> list[PackageSource]:
    """The packages that a model was taken from; none where its manifest makes no sense there."""
    try:
        return [PackageSource(**each) for each in json.loads(manifest.annotations[SOURCES])]
    except (KeyError, TypeError, ValueError):
        return []
