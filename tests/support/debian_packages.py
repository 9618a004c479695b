"""Programs of Debian's packages: fetched without being installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / ".clients"


def find_program(package: str, name: str) -> Path | None:
    """A program of a package, if it is here: installed, or fetched."""
    installed, fetched = shutil.which(name), _FOLDER / package / "usr/bin" / name
    return Path(installed) if installed else fetched if fetched.exists() else None


def fetch_package(package: str) -> None:
    """Fetch a package into .clients/."""
    print(f"fetching {package}", flush=True)
    folder = _FOLDER / package
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "--quiet", package], cwd=folder, check=True)
    archive = next(folder.glob(f"{package}_*.deb"))
    subprocess.run(["dpkg-deb", "--extract", archive, folder], check=True)
