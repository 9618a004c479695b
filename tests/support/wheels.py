"""Builds wheels that carry model files, sound and broken ones."""

from __future__ import annotations

import base64
import hashlib
import random
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def model_bytes(size: int = 200_000, seed: int = 0) -> bytes:
    """Something that starts like a GGUF file and doesn't compress."""
    return b"GGUF" + random.Random(seed).randbytes(size - 4)


def build_wheel(
    directory: Path,
    package: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    headers: Sequence[str] = (),
    record_of: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a wheel.

    Args:
        directory: Where to.
        package: Its name.
        version: Its version.
        files: Contents by path within the wheel.
        headers: Further lines of METADATA, e.g. `License: MIT`.
        record_of: Contents that RECORD is to describe, where they differ from `files`.
    """
    stem = f"{package.replace('-', '_')}-{version}"
    metadata = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}", *headers]
    members = dict(files)
    members[f"{stem}.dist-info/METADATA"] = "\n".join(metadata).encode() + b"\n"
    members[f"{stem}.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nTag: py3-none-any\n"
    rows = []
    for path, content in {**members, **(record_of or {})}.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}")
    rows.append(f"{stem}.dist-info/RECORD,,")
    members[f"{stem}.dist-info/RECORD"] = "\n".join(rows).encode() + b"\n"
    path = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path
