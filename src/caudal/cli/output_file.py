"""Files that commands write: whether that can be done is seen before any work is."""

from __future__ import annotations

import os
from pathlib import Path

import typer

STANDARD_OUTPUT = Path("-")


def checked_output(path: Path | None) -> Path | None:
    """For an option's `callback`: a file that can be written, as far as is known beforehand.

    Raises:
        typer.BadParameter: It can't be; says why.
    """
    if path is None or path == STANDARD_OUTPUT:
        return path
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a directory")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise typer.BadParameter(f"{path} can't be written")
    return path


def write_output(path: Path, content: bytes) -> None:
    """Write a file.

    Raises:
        typer.BadParameter: It can't be; says why.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror or error}") from error
