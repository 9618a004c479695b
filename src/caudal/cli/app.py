"""The `caudal` command itself: which subcommands there are and how errors are shown.

A subcommand is a function in a file of its own, registered here. It imports what it needs when it
runs, so that `caudal --help` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from caudal.cli import bench
from caudal.cli.list import list_models
from caudal.cli.pull import pull
from caudal.cli.rm import rm
from caudal.cli.run import run
from caudal.cli.serve import serve
from caudal.cli.show import show
from caudal.errors import CaudalError

INTERRUPTED = 130
"""Exit status of a program stopped by Ctrl-C, as shells have it: 128 + SIGINT."""


class _CaudalGroup(TyperGroup):
    """Shows an error of ours as one line, and stops quietly on Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CaudalError as error:
            typer.echo(f"caudal: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            typer.echo(err=True)
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            # Whoever read our output has seen enough; keep Python from complaining at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            typer.echo("caudal: cannot write: no space is left on the device", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="caudal",
    cls=_CaudalGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    epilog="Models are kept in `~/.caudal`, or where `CAUDAL_HOME` points.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"caudal {version('caudal')}")
        raise typer.Exit


@app.callback()
def caudal(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Serve local language models: from a model file to many concurrent answers.

    Serve a small chat model, or talk with it:

        caudal serve smollm2
        caudal run smollm2

    `caudal COMMAND --help` explains each command, with examples.
    """


app.command()(serve)
app.command()(run)
app.command()(pull)
app.command("list")(list_models)
app.command()(show)
app.command()(rm)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command that the process was started with."""
    app()
