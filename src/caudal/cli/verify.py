"""`caudal verify`: compare the models on this machine with what was fetched."""

from __future__ import annotations

from typing import Annotated

import typer


def verify(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A name from `caudal list`; all of them without it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Read models in full and compare every byte with the hashes they were stored with.

    Loading a model does so only if a file was written to since it was last checked; this notices
    a failing disk, too. Exits with 1 if a model is damaged, and says how to repair it.

    For example:

        caudal verify
        caudal verify smollm2
    """
    from rich.console import Console
    from rich.table import Table

    from caudal.cli.formatting import format_bytes
    from caudal.cli.pull_display import progress_display
    from caudal.store import Store

    store = Store()
    with progress_display(Console(stderr=True, highlight=False)) as progress:
        found = list(store.verify(model, progress))
    if not found:
        typer.echo(f"No models in {store.home}.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "SIZE", "STATE"):
        table.add_column(heading, justify="right" if heading == "SIZE" else "left", overflow="fold")
    damaged = [each for each in found if each.damage is not None]
    for each in found:
        table.add_row(
            each.name, format_bytes(each.size), "whole" if each.damage is None else "damaged"
        )
    Console(highlight=False, markup=False).print(table)
    for each in damaged:
        typer.echo(
            f"caudal: {each.name} is damaged: {each.damage}. Repair it with: {each.repair}",
            err=True,
        )
    if damaged:
        raise typer.Exit(1)
