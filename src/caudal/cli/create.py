"""`caudal create`: make a model from a Modelfile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from caudal.packaging.modelfile import Modelfile

_STDIN = "-"
_DEFAULT = "Modelfile"


def create(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="What the model is to be called.", show_default=False),
    ],
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="The Modelfile, or `-` for standard input. By default `Modelfile` in this "
            "directory, or where there is none, the model in this directory.",
            show_default=False,
        ),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(
            "--quantize",
            "-q",
            metavar="TYPE",
            help="Store the weights in this type, e.g. `q4_K_M` or `q8_0`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    r"""Make a model from a Modelfile: weights, and how they are to be used.

    A Modelfile says what to build on (FROM: a model's name, a .gguf file or a folder of
    safetensors), and what is different: SYSTEM, TEMPLATE, PARAMETER, ADAPTER, MESSAGE, LICENSE.
    What the model builds on is shared, not copied. docs/modelfile.md has all of it.

    For example:

        printf 'FROM smollm2\nSYSTEM Be brief.\n' | caudal create brief -f -
        caudal create brief                 of ./Modelfile
        caudal create mine -f ~/x/Modelfile --quantize q4_K_M
    """
    from caudal.cli.create_display import create_display
    from caudal.cli.formatting import format_bytes
    from caudal.cli.pull_display import ensure_with_display
    from caudal.packaging.create import create_model
    from caudal.packaging.create_progress import CreateProgress
    from caudal.packaging.recipe import recipe_of
    from caudal.store import Store
    from caudal.store.names import parse_kept_name

    parse_kept_name(name)
    modelfile = _read(file)
    directory = Path() if file is None or file == _STDIN else Path(file).parent
    recipe = recipe_of(modelfile, directory, quantize)
    store = Store()
    if recipe.from_ is not None:
        ensure_with_display(store, recipe.from_)  # with the terms that it comes under
    with create_display() as progress:
        progress(CreateProgress("gathering model components"))
        stored = create_model(store, name, recipe, progress)
    typer.echo(f"{stored.name} is ready ({format_bytes(stored.total_size)})")


def _read(file: str | None) -> Modelfile:
    from caudal.errors import ModelLoadError
    from caudal.packaging.model_paths import model_files_at
    from caudal.packaging.modelfile import MAX_BYTES, ModelfileError, parse_modelfile

    if file == _STDIN:
        return parse_modelfile(sys.stdin.buffer.read(MAX_BYTES + 1))
    path = Path(_DEFAULT if file is None else file)
    if file is None and not path.exists():
        try:
            model_files_at(Path())
        except ModelLoadError as error:
            raise ModelfileError(
                None, "there is none in this directory, nor a model; name one with -f"
            ) from error
        return parse_modelfile("FROM .\n")
    try:
        with path.open("rb") as stream:
            return parse_modelfile(stream.read(MAX_BYTES + 1))
    except OSError as error:
        raise ModelfileError(None, f"{path} can't be read: {error.strerror}") from error
