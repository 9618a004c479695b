"""`caudal ps` and `caudal stop`: what a running server has loaded."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from caudal.cli.server_client import DEFAULT_URL, ApiKey, Url, ask_server


def ps(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the server says.")] = False,
) -> None:
    """Show which models a running server has loaded, what they take and do, and until when.

    For example:

        caudal ps
        caudal ps --url http://127.0.0.1:8001

    `caudal list --url URL` shows what else the server has.
    """
    answer = ask_server(url, api_key, "GET", "/ps", has="memory_used")
    if as_json:
        import json

        typer.echo(json.dumps(answer, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    from caudal.cli.formatting import format_bytes

    if not answer["models"]:
        typer.echo("No model is loaded.")
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("NAME", "WHERE", "MEMORY", "RUNNING", "WAITING", "UNTIL"):
            right = heading in ("MEMORY", "RUNNING", "WAITING")
            table.add_column(heading, justify="right" if right else "left", overflow="fold")
        for model in answer["models"]:
            table.add_row(
                model["name"],
                _where(model),
                format_bytes(model["memory"]) if model["memory"] else "",
                str(model["running"]),
                str(model["waiting"]),
                _until(model),
            )
        Console(highlight=False, markup=False).print(table)
    if answer["memory"] is not None:
        used, most = format_bytes(answer["memory_used"]), format_bytes(answer["memory"])
        typer.echo(f"\n{used} of {most} are taken.")


def stop(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Its name, as in `caudal ps`.", show_default=False),
    ],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Unload a model of a running server, once what runs on it has ended.

    For example:

        caudal stop smollm2

    The next request for it loads it again.
    """
    ask_server(url, api_key, "POST", "/v1/models/unload", {"model": model}, has="success")
    typer.echo(f"{model} is unloaded")


def _where(model: dict[str, Any]) -> str:
    process = model["process_id"]
    if process is not None:
        return f"process {process}"
    return "the server" if model["state"] in ("loaded", "unloading") else ""


def _until(model: dict[str, Any]) -> str:
    """How long it stays, or what else there is to say of it."""
    from caudal.fleet.durations import duration_text

    state: str = model["state"]
    if state == "loading":
        share = f" {100 * model['progress']:.0f} %" if model["progress"] else ""
        return f"loading: {model['stage']}{share}"
    if "trouble" in model:
        return f"not loaded: {model['trouble']}"
    if state != "loaded":
        return state
    if model["running"]:
        return "in use"
    seconds = model["expires_in"]
    return "for ever" if seconds is None else f"in {duration_text(seconds)}"
