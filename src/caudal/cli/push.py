"""`caudal push`: give a model to a registry."""

from __future__ import annotations

from typing import Annotated

import typer


def push(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model of the store; the host in its name is the registry.",
            show_default=False,
        ),
    ],
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Ask a registry that isn't on this machine without encryption, too."
        ),
    ] = False,
) -> None:
    """Give a model to the registry that its name begins with.

    What the registry has already isn't sent again, and an interrupted push goes on. Log in with
    `docker login HOST` or `podman login HOST` where that is needed.

    For example:

        caudal cp smollm2 127.0.0.1:5000/me/smollm2
        caudal push 127.0.0.1:5000/me/smollm2
    """
    from rich.console import Console

    from caudal.cli.pull_display import progress_display
    from caudal.store import Store
    from caudal.store.names import parse_kept_name
    from caudal.store.registry.push import push_image

    name = parse_kept_name(model)
    with progress_display(Console(stderr=True, highlight=False)) as progress:
        push_image(Store(), name, progress, insecure=insecure)
    typer.echo(f"{name.shown} is pushed")
