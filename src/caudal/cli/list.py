"""`caudal list`: the models on this machine."""

from __future__ import annotations

import typer


def list_models() -> None:
    """Show the models in the store: name, size, licence and when each was fetched."""
    from datetime import UTC, datetime

    from rich.console import Console
    from rich.table import Table

    from caudal.cli.formatting import format_age, format_bytes
    from caudal.store import Store

    store = Store()
    models = store.list()
    if not models:
        typer.echo(f"No models in {store.home} yet. Fetch one with: caudal pull smollm2")
        return
    now = datetime.now(UTC)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "SIZE", "LICENCE", "FETCHED"):
        table.add_column(heading, justify="right" if heading == "SIZE" else "left", overflow="fold")
    for model in models:
        table.add_row(
            model.name,
            format_bytes(model.size),
            model.licence or "unknown",
            format_age(model.modified, now),
        )
    Console(highlight=False, markup=False).print(table)
    packed = sum(entry.size for entry in store.packed().entries())
    if packed:
        typer.echo(
            f"\nPacked weights take {format_bytes(packed)} besides; to delete them: caudal prune"
        )
