"""Settings of `caudal serve` as options of commands, with their help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from caudal.configuration.setting import setting_of
from caudal.configuration.settings import ServeSettings, settings_fields, table_of

Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="CAUDAL_CONFIG",
        help="A TOML file of settings, models, keys and routes: docs/configuration.md. Options and "
        "variables go before it; SIGHUP has it be read anew.",
        show_default=False,
    ),
]


def setting_option(name: str, *, noted: str | None = None, envvar: str | None = None) -> Any:
    """A setting as Typer has options.

    Args:
        name: Its field's.
        noted: A variable that says it, too; who has the option reads that.
        envvar: One that Typer is to read.
    """
    a_field = settings_fields()[name]
    about = setting_of(a_field)
    notes = [] if noted is None else [f"[env var: {noted}]"]
    notes += [] if about.default is None else [f"[default: {about.default}]"]
    options: dict[str, Any] = {
        "help": "  ".join([about.text, *notes]),
        "show_default": a_field.default not in (None, ()),
        "metavar": about.metavar,
    }
    if about.notation is not None:
        options |= {"parser": _parser(about.notation.read), "metavar": about.notation.name}
    if name == "model":
        return typer.Argument(**(options | {"metavar": "MODEL"}))
    flags = [about.flag] if about.flag else ["--" + name.replace("_", "-")]
    panel = inspect.getdoc(table_of(name)).rstrip(".")  # type: ignore[union-attr]
    return typer.Option(
        *flags,
        min=about.least,
        max=about.most,
        envvar=envvar,
        rich_help_panel=panel,
        **options,
    )


def _parser(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parse


@cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(ServeSettings)


def with_settings(
    command: Callable[..., None], *, without: Collection[str] = ()
) -> Callable[..., None]:
    """Give a command all settings as its options, besides the parameters that it names.

    Args:
        command: It; `said_settings` tells it which of them the command line says.
        without: Settings that it doesn't have.
    """
    given = list(inspect.signature(command, eval_str=True).parameters.values())
    parameters = [each for each in given if each.kind is not inspect.Parameter.VAR_KEYWORD]
    for name, a_field in settings_fields().items():
        if name in without:
            continue
        kind, default = _kinds()[name], a_field.default
        if get_origin(kind) is tuple:
            kind, default = list[str] | None, None
        option = setting_option(name, noted=next(iter(setting_of(a_field).variables), None))
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, option],
            )
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def said_settings(context: typer.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Those of a command's settings that the command line says."""
    said = {}
    for name, value in given.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":  # Typer brings its own
            said[name] = value
    return said
