"""A model's adapters, from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from caudal.errors import AdapterNotFoundError, ModelLoadError, ParameterError
from caudal.formats.lora.adapter import Adapter
from caudal.formats.lora.base import AdapterBase
from caudal.formats.lora.reading import read_adapter
from caudal.store import StoredModel

AdapterPaths = Mapping[str, str]
"""Adapters to load: by the names that requests will use, the paths of a GGUF file or a folder."""

NO_ADAPTERS: AdapterPaths = {}

MAX_NAME = 256
"""Most characters of an adapter's name: figures and lists of models have it."""


def load_adapter(name: str, path: str, base: AdapterBase) -> Adapter:
    """Read an adapter of a model.

    Args:
        name: What requests will call it.
        path: A GGUF file, or a folder as PEFT saves it.
        base: The model.

    Raises:
        ParameterError: It can't be called that.
        AdapterNotFoundError: There is no such file.
        ModelLoadError: It can't be used with this model.
    """
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ParameterError(
            "lora_name",
            f"lora_name must be 1 to {MAX_NAME} printable characters, but is {name[:80]!r}.",
        )
    try:
        there = Path(path).is_file() or Path(path).is_dir()  # and no pipe that is waited for
    except (OSError, ValueError):  # no name that a file could have
        there = False
    if not there:
        raise AdapterNotFoundError(name, path)
    return read_adapter(Path(path), base)


def parse_adapter(text: str) -> tuple[str, str]:
    """The name and the path that `NAME=PATH` says.

    Raises:
        ParameterError: It says none.
    """
    name, _, path = text.partition("=")
    if not name or not path:
        raise ParameterError(
            "lora", f"{text!r} is no adapter; write NAME=PATH, e.g. sql=./sql.gguf."
        )
    return name, path


def own_adapter(stored: StoredModel, base: AdapterBase) -> Adapter | None:
    """The adapter that belongs to a model.

    Raises:
        ModelLoadError: It can't be used with the model, or there are several.
    """
    adapters = stored.package.adapters
    if not adapters:
        return None
    if len(adapters) > 1:
        raise ModelLoadError(
            stored.name, f"its package has {len(adapters)} adapters; it may have one"
        )
    return read_adapter(adapters[0], base)
