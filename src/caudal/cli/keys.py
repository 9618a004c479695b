"""`caudal keys`: who may use a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from caudal.tenants.key_file import KeyTable

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys of servers.")

KeysFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="The file that has the keys.",
        show_default="keys.toml in ~/.caudal, or where CAUDAL_HOME points",
    ),
]

_DURATION = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_LIMITS = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "concurrent_requests": "at a time",
    "max_waiting": "waiting",
    "max_prompt_tokens": "tokens a prompt",
    "max_n": "answers a request",
    "max_output_tokens": "tokens an answer",
}


def _name(text: str) -> str:
    from caudal.tenants.keys import checked_name

    try:
        return checked_name(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Name = Annotated[str, typer.Argument(metavar="NAME", parser=_name, help="Whose key it is.")]


def _expiry(text: str) -> datetime:
    """A time, or how long it is until then."""
    now = datetime.now(UTC)
    try:
        if match := _DURATION.fullmatch(text):
            return now + timedelta(**{_UNITS[match[2]]: int(match[1])})
        moment = datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"must be a duration like 90d or 12h, or a time like 2027-06-30, but is {text[:80]!r}"
        ) from None
    if moment <= now:
        raise typer.BadParameter(f"is over already: {text}")
    return moment


@app.command()
def add(
    name: Name,
    models: Annotated[
        list[str] | None,
        typer.Option(
            help="A model, adapter, alias or route that it may use, or a pattern such as "
            "`qwen3*`; repeat it for more.",
            show_default="all",
        ),
    ] = None,
    rpm: Annotated[int | None, typer.Option(min=1, help="Most requests a minute.")] = None,
    tpm: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens a minute, of prompts and answers: docs/keys.md."),
    ] = None,
    concurrent: Annotated[
        int | None, typer.Option(min=1, help="Most requests that run at a time.")
    ] = None,
    max_waiting: Annotated[
        int | None, typer.Option(min=1, help="Most requests that wait in one model's queue.")
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a prompt.")
    ] = None,
    max_n: Annotated[int | None, typer.Option(min=1, help="Most answers of a request.")] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an answer.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(help="Lower runs first; a request can be less urgent, not more."),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(help="Its share beside others of its priority.", show_default="1"),
    ] = None,
    share_prefixes: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Share cached prefixes with keys of the same word; empty: with all whose word is "
            "empty.",
            show_default="with nobody",
        ),
    ] = None,
    first_token_timeout: Annotated[
        float | None, typer.Option(help="Seconds in which answers must have begun.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds in which requests must be done.")
    ] = None,
    admin: Annotated[
        bool | None,
        typer.Option("--admin", help="It may change the server, and see what others do."),
    ] = None,
    expires: Annotated[
        datetime | None,
        typer.Option(
            metavar="WHEN",
            parser=_expiry,
            help="When it isn't a key any more: in 90d or 12h, or at a time such as 2027-06-30 "
            "(UTC).",
            show_default="never",
        ),
    ] = None,
    file: KeysFile = None,
) -> None:
    """Make a key. It is shown once: the file has only its hash.

    For example:

        caudal keys add alice --models 'qwen3*' --rpm 60 --expires 90d
        caudal serve --host 0.0.0.0 --api-keys ~/.caudal/keys.toml

    What isn't said holds as the file's [defaults] have it. Servers that run notice within a second.
    """
    from pydantic import ValidationError

    from caudal.reading.explain import explain_errors
    from caudal.tenants.key_editing import add_key, default_key_file
    from caudal.tenants.key_file import RulesTable

    rules: dict[str, Any] = {
        "expires": None if expires is None else expires.replace(microsecond=0),
        "models": models or None,
        "requests_per_minute": rpm,
        "tokens_per_minute": tpm,
        "concurrent_requests": concurrent,
        "max_waiting": max_waiting,
        "max_prompt_tokens": max_prompt_tokens,
        "max_n": max_n,
        "max_output_tokens": max_output_tokens,
        "priority": priority,
        "weight": weight,
        "share_prefixes": share_prefixes,
        "first_token_timeout": first_token_timeout,
        "timeout": timeout,
        "admin": admin,
    }
    said = {field: value for field, value in rules.items() if value is not None}
    try:
        RulesTable.model_validate({f: value for f, value in said.items() if f != "expires"})
    except ValidationError as error:
        message, _ = explain_errors(error.errors(include_url=False))
        raise typer.BadParameter(message) from None
    path = file or default_key_file()
    key = add_key(path, name, said)
    typer.echo(key)
    typer.echo(
        f"That is the key of {name!r}, shown this once; {path} has its hash. Servers that were "
        f"started with --api-keys {path} take it within a second.",
        err=True,
    )


@app.command("list")
def list_keys(file: KeysFile = None) -> None:
    """Show the keys of a file: what they are called, may do, and when they end.

    For example:

        caudal keys list
        caudal keys list --file /etc/caudal/keys.toml

    Keys themselves aren't in it: it has only their hashes.
    """
    from rich.console import Console
    from rich.table import Table

    from caudal.cli.formatting import format_age
    from caudal.tenants.key_editing import default_key_file, read_keys

    path = file or default_key_file()
    keys = read_keys(path)
    if not keys:
        typer.echo(f"No keys in {path} yet. Make one with: caudal keys add NAME")
        return
    now = datetime.now(UTC)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "MAY", "CREATED", "EXPIRES"):
        table.add_column(heading, overflow="fold")
    for name, key in keys.items():
        ends = "never" if key.expires is None else f"{key.expires:%Y-%m-%d %H:%M}"
        if key.expires is not None and key.expires <= now:
            ends = "has expired"
        created = "" if key.created is None else format_age(key.created, now)
        table.add_row(name, _in_words(key), created, ends)
    Console(highlight=False, markup=False).print(table)


@app.command()
def revoke(name: Name, file: KeysFile = None) -> None:
    """Take a key away. What runs for it on servers ends within a second.

    For example:

        caudal keys revoke alice

    To exchange a key, revoke it and add another of the same name, which then has what was its own.
    """
    from caudal.tenants.key_editing import default_key_file, revoke_key

    path = file or default_key_file()
    revoke_key(path, name)
    typer.echo(f"revoked {name}")


def _in_words(key: KeyTable) -> str:
    said: Mapping[str, Any] = key.said()
    words = []
    if said.get("admin"):
        words.append("everything")
    if said.get("models"):
        words.append(", ".join(said["models"]))
    words += [f"{said[field]} {what}" for field, what in _LIMITS.items() if field in said]
    for field in ("priority", "weight", "share_prefixes", "first_token_timeout", "timeout"):
        if field in said:
            words.append(f"{field.replace('_', ' ')} {said[field]}")
    return "; ".join(words) or "use models"
