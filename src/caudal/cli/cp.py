"""`caudal cp`: give a model another name, too."""

from __future__ import annotations

from typing import Annotated

import typer


def cp(
    source: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A name from `caudal list`.", show_default=False),
    ],
    destination: Annotated[
        str, typer.Argument(metavar="NAME", help="The other name.", show_default=False)
    ],
) -> None:
    """Give a model another name, too.

    Both share its files.

    For example:

        caudal cp smollm2 mine
        caudal cp mine registry.example.com/team/mine:v1
    """
    from caudal.store import Store

    copied = Store().copy(source, destination)
    typer.echo(f"{source} is {copied.name}, too")
