"""`caudal list`: the models on this machine."""

from __future__ import annotations

import typer

from caudal.cli.server_client import ApiKey, AskedUrl, ask_server
from caudal.errors import StoreError


def list_models(url: AskedUrl = None, api_key: ApiKey = None) -> None:
    """Show the models on this machine: name, size, parameters, quantisation, when each came.

    Those that Ollama has are among them; they can be used where they are.

    Of a server, which may be Ollama's, where `--url`, CAUDAL_URL or OLLAMA_HOST names one: the
    models that it has.
    """
    if url is not None:
        _list_served(url, api_key)
        return
    from datetime import UTC, datetime

    from rich.console import Console
    from rich.table import Table

    from caudal.cli.formatting import format_age, format_bytes
    from caudal.store import ModelOrigin, Store

    store = Store()
    damaged: list[StoreError] = []
    models = store.list(damaged.append)
    for error in damaged:
        typer.echo(f"caudal: {error}", err=True)
    if not models:
        typer.echo(f"No models in {store.home} yet. Fetch one with: caudal pull smollm2")
        return
    now = datetime.now(UTC)
    headings = ["NAME", "SIZE", "PARAMETERS", "QUANTISATION", "MODIFIED"]
    foreign = any(model.origin is ModelOrigin.OLLAMA for model in models)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings + (["WHERE"] if foreign else []):
        table.add_column(heading, justify="right" if heading == "SIZE" else "left", overflow="fold")
    for model in models:
        config = model.config
        where = "Ollama" if model.origin is ModelOrigin.OLLAMA else "Caudal"
        table.add_row(
            model.name,
            format_bytes(model.total_size),
            (config and config.model_type) or "unknown",
            (config and config.file_type) or "unknown",
            format_age(model.modified, now),
            *([where] if foreign else []),
        )
    Console(highlight=False, markup=False).print(table)
    packed = sum(entry.size for entry in store.packed().entries())
    if packed:
        typer.echo(
            f"\nPacked weights take {format_bytes(packed)} besides; to delete them: caudal prune"
        )


def _list_served(url: str, api_key: str | None) -> None:
    from datetime import UTC, datetime

    from rich.console import Console
    from rich.table import Table

    from caudal.cli.formatting import format_age, format_bytes

    models = ask_server(url, api_key, "GET", "/api/tags", has="models")["models"]
    if not models:
        typer.echo(f"{url} has no models yet.")
        return
    now = datetime.now(UTC)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "SIZE", "MODIFIED"):
        table.add_column(heading, justify="right" if heading == "SIZE" else "left", overflow="fold")
    for model in models:
        modified = datetime.fromisoformat(model["modified_at"])
        table.add_row(model["name"], format_bytes(model["size"]), format_age(modified, now))
    Console(highlight=False, markup=False).print(table)
