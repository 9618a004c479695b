"""What the environment says where the command line doesn't: our variables, or Ollama's.

`CAUDAL_KEEP_ALIVE` goes before `OLLAMA_KEEP_ALIVE`, and an option before both. Ollama falls back to
its default where it can't read a value; here that is an error that names the variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from caudal.errors import SettingError

T = TypeVar("T")


def from_environment(read: Callable[[str], T], variables: Sequence[str]) -> tuple[str, T] | None:
    """A setting, and the variable that says it; None where none is set.

    Args:
        read: Makes a value of the text; raises `ValueError`, which says what it must be.
        variables: Where to look, the one that goes before the others first.

    Raises:
        SettingError: Names the variable.
    """
    for variable in variables:
        text = os.environ.get(variable, "").strip().strip("\"'")  # as Ollama reads it
        if text:
            try:
                return variable, read(text)
            except ValueError as error:
                raise SettingError(variable, str(error)) from error
    return None


def ours_or_ollamas(name: str) -> tuple[str, str]:
    """The variables that say a setting which Ollama has too."""
    return f"CAUDAL_{name}", f"OLLAMA_{name}"


def count(text: str) -> int:
    """A number of things, 0 for the default; raises `ValueError`."""
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ValueError(f"must be an integer of at least 0, but is {text[:80]!r}")
    return int(text)


def count_or_default(text: str) -> int | None:
    """The same, with None for the default."""
    return count(text) or None


def flag(text: str) -> bool:
    """Yes or no; raises `ValueError`."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if (known := words.get(text.lower())) is None:
        raise ValueError(f"must be 1 (or true, yes) or 0 (or false, no), but is {text[:80]!r}")
    return known
