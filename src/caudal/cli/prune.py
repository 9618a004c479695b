"""`caudal prune`: delete what no model needs, and what can be made again."""

from __future__ import annotations

from typing import Annotated

import typer


def prune(
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help="Of packed weights only those of no use any more: the model is gone, or changed.",
        ),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Of blobs and downloads also those of the last three days, but an hour."
        ),
    ] = False,
) -> None:
    """Delete the packed weights that are kept on the disk, and what no model needs.

    Packed weights make the next start of a model fast, and are made again when it is started.
    Files that no model has, and downloads that weren't finished, go when they are three days old.
    Models stay, and so does all that is Ollama's. A model that runs meanwhile goes on.

    For example:

        caudal prune
        caudal prune --stale
        caudal prune --all
    """
    from itertools import groupby

    from caudal.cli.formatting import format_bytes
    from caudal.store import Store

    store = Store()
    packed = store.packed().remove(lambda entry: entry.is_stale or not stale)
    for entry in packed:
        typer.echo(f"removed packed weights of {entry.model} ({format_bytes(entry.size)})")
    unused = store.prune(grace=3600 if everything else None)
    for what, group in groupby(unused, key=lambda file: file.what):
        files = list(group)
        many = what if len(files) == 1 else f"{what}s"
        size = format_bytes(sum(file.size for file in files))
        typer.echo(f"removed {len(files)} {many} ({size})")
    if not packed and not unused:
        typer.echo("Nothing to remove.")
