"""`caudal config`: files that say what `caudal serve` is to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caudal.cli.serve_options import said_settings, with_settings

if TYPE_CHECKING:
    from caudal.configuration.effective import EffectiveSettings
    from caudal.configuration.pieces import Pieces

app = typer.Typer(
    help="Files that say what `caudal serve` is to do: check one, or print one with everything.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command()
def example() -> None:
    """Print a configuration file with all that it can say, explained, and its defaults.

    A beginning for one of your own:

        caudal config example > caudal.toml

    `caudal config check` says whether it can be used.
    """
    from caudal.configuration.example import example as text

    typer.echo(text(), nl=False)


def check(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            envvar="CAUDAL_CONFIG",
            help="A configuration file.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show settings that have their defaults, too.")
    ] = False,
    **settings: Any,
) -> None:
    """Check a configuration, and show what would be served and where each setting comes from.

    Everything that is wrong is said with its line, and the exit status is 1. Nothing is started,
    and nothing is fetched:

        caudal config check caudal.toml

    The options of `caudal serve` may be given, too, as they go before the file.
    """
    from caudal.configuration.checking import check_routes
    from caudal.configuration.effective import effective_settings
    from caudal.configuration.file import read_file
    from caudal.configuration.pieces import pieces_of
    from caudal.store import Store

    said = said_settings(context, settings)
    effective = effective_settings(said, None if file is None else read_file(file))
    made, store = pieces_of(effective), Store()
    missing = check_routes(effective, made, store)
    for line in _served(effective, made, missing):
        typer.echo(line)
    typer.echo("")
    for line in _settings(effective, every=every):
        typer.echo(line)


def _served(effective: EffectiveSettings, made: Pieces, missing: set[str]) -> list[str]:
    """What would be served, and to whom."""
    given = effective.values
    scheme = "http" if made.certificates is None else "https"
    host = f"[{given.host}]" if ":" in given.host else given.host
    lines = {"address": f"{scheme}://{host}:{given.port}"}
    if not made.models:
        lines["models"] = "all on this machine, each when it is first asked for"
    for model in made.models:
        words = [f"the model {model.name}"]
        words += [f"also {', '.join(model.names[1:])}"] if model.names[1:] else []
        words += [f"adapters {', '.join(model.lora)}"] if model.lora else []
        words += ["to be fetched"] if model.name in missing else []
        lines[model.own_name] = ", ".join(words)
    for each in made.routes.definitions:
        lines[each.name] = f"leads to {', '.join(each.targets)}"
    ring = made.access.ring()
    names = [] if ring is None else [tenant.name for tenant in ring.tenants]
    lines["keys"] = ", ".join(names) if ring is not None else "none: whoever reaches it may ask"
    width = max(map(len, lines))
    return [f"  {name:<{width}}  {value}" for name, value in lines.items()]


def _settings(effective: EffectiveSettings, *, every: bool) -> list[str]:
    """Settings, and where each comes from."""
    from caudal.configuration.effective import key_of
    from caudal.configuration.example import toml
    from caudal.configuration.setting import SIZE, setting_of
    from caudal.configuration.settings import settings_fields

    rows: list[tuple[str, str, str]] = []

    def add(prefix: str, name: str, value: Any, place: str) -> None:
        about = setting_of(settings_fields()[name])
        if about.secret and value is not None:
            shown = "(a secret)"
        elif value is None:
            shown = f"({about.default or 'none'})"
        elif about.notation is SIZE and isinstance(value, int):
            shown = toml(_size(value))
        else:
            shown = toml(value)
        rows.append((prefix + key_of(name), shown, place))

    for name in settings_fields():
        origin = effective.origins.get(name)
        if origin is not None or every:
            value = getattr(effective.values, name)
            add("", name, value, "default" if origin is None else origin.place)
    for model in () if effective.file is None else effective.file.models:
        for name, value in model.values.items():
            origin = effective.origins.get(name)
            if origin is None or origin.kind == "file":
                add(f"{model.own_name}: ", name, value, model.origins[name].place)
    if not rows:
        return ["All settings have their defaults."]
    first = max(len(name) for name, _, _ in rows)
    second = min(40, max(len(value) for _, value, _ in rows))
    return [f"  {name:<{first}}  {value:<{second}}  {place}" for name, value, place in rows]


def _size(value: int) -> str | int:
    """Bytes as they may be written in the file."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value and value % 1024**power == 0:
            return f"{value // 1024**power}{unit}"
    return value


app.command()(with_settings(check, without=("model",)))
