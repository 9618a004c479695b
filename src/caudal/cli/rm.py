"""`caudal rm`: delete a model from the store."""

from __future__ import annotations

from typing import Annotated

import typer


def rm(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="Names as `caudal list` shows them."),
    ],
) -> None:
    """Delete models from the store.

    A file that another name shares stays, and so do files outside the store.

    For example:

        caudal rm gemma3:270m-base
    """
    from caudal.cli.formatting import format_bytes
    from caudal.store import Store

    store = Store()
    for model in models:
        removed = store.remove(model)
        typer.echo(f"removed {removed.name} ({format_bytes(removed.size)})")
