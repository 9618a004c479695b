"""`caudal prune`: delete what can be made again."""

from __future__ import annotations

from typing import Annotated

import typer


def prune(
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help="Only what is of no use any more: its model is gone, or was changed.",
        ),
    ] = False,
) -> None:
    """Delete the packed weights that are kept on the disk.

    They make the next start of a model fast, and are made again when it is started. Models stay.
    One that runs meanwhile goes on.

    For example:

        caudal prune
        caudal prune --stale
    """
    from caudal.cli.formatting import format_bytes
    from caudal.store import Store

    removed = Store().packed().remove(lambda entry: entry.is_stale or not stale)
    for entry in removed:
        typer.echo(f"removed packed weights of {entry.model} ({format_bytes(entry.size)})")
    if not removed:
        typer.echo("No packed weights to remove.")
