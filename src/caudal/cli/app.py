"""The `caudal` command itself: which subcommands there are and how errors are shown.

A subcommand is a function in a file of its own, registered here. It imports what it needs when it
runs, so that `caudal --help` answers at once.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

import typer
from typer.core import TyperGroup

from caudal.cli import bench, config, keys
from caudal.cli.batch import batch
from caudal.cli.cp import cp
from caudal.cli.create import create
from caudal.cli.launch import launch
from caudal.cli.list import list_models
from caudal.cli.plan import plan
from caudal.cli.prune import prune
from caudal.cli.ps import ps, stop
from caudal.cli.pull import pull
from caudal.cli.push import push
from caudal.cli.rm import rm
from caudal.cli.run import run
from caudal.cli.serve import serve
from caudal.cli.show import show
from caudal.cli.verify import verify
from caudal.errors import CaudalError, SettingError

INTERRUPTED = 130
"""Exit status of a program stopped by Ctrl-C, as shells have it: 128 + SIGINT."""


@runtime_checkable
class _UsageError(Protocol):
    """What click raises, of which typer may or may not have a copy of its own."""

    exit_code: int
    ctx: Any

    def format_message(self) -> str: ...


class _CaudalGroup(TyperGroup):
    """Shows every error as one line, and stops quietly on Ctrl-C."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        run = functools.partial(
            super().main, args, prog_name, complete_var, False, windows_expand_args, **extra
        )
        if not standalone_mode:
            return run()
        try:
            status = run()
        except typer.Abort:
            sys.exit(1)
        except Exception as error:
            if not isinstance(error, _UsageError):
                raise
            if error.format_message():  # without arguments, the help has been shown
                typer.echo(_one_line(error), err=True)
            sys.exit(error.exit_code)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SettingError as error:
            path = f"{ctx.command_path} {ctx.invoked_subcommand}"
            typer.echo(
                f"{path}: error: Invalid value for {error.place}: {error.reason} "
                f"(see {path} --help)",
                err=True,
            )
            raise typer.Exit(2) from error
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
            if error.errno == errno.ENOSPC:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                message = "cannot write: no space is left on the device"
            elif isinstance(error.filename, str):  # the user's files, not what we do wrong
                message = f"{error.filename}: {error.strerror}"
            else:
                raise
            typer.echo(f"caudal: {message}", err=True)
            raise typer.Exit(1) from error


def _one_line(error: _UsageError) -> str:
    """What is wrong with a command, e.g. `caudal rm: error: Missing argument 'MODEL'. (…)`."""
    path = "caudal" if error.ctx is None else error.ctx.command_path
    message = " ".join(error.format_message().replace("Value error, ", "").split())
    return f"{path}: error: {message} (see {path} --help)"


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
app.command()(batch)
app.command()(launch)
app.command()(ps)
app.command()(stop)
app.command()(pull)
app.command()(push)
app.command("list")(list_models)
app.command()(show)
app.command()(plan)
app.command()(verify)
app.command()(create)
app.command()(cp)
app.command()(rm)
app.command()(prune)
app.add_typer(keys.app, name="keys")
app.add_typer(config.app, name="config")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command that the process was started with."""
    app()
