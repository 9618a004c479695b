"""The backends there are, by name. One that isn't asked for isn't imported."""

from __future__ import annotations

from collections.abc import Callable

from caudal.backends.backend import Backend
from caudal.errors import ParameterError


def _native() -> Backend:
    from caudal.backends.native.backend import NativeBackend

    return NativeBackend()


BACKENDS: dict[str, Callable[[], Backend]] = {"native": _native}


def find_backend(name: str) -> Backend:
    """The backend of a name.

    Raises:
        ParameterError: There is none.
    """
    make = BACKENDS.get(name)
    if make is None:
        known = " or ".join(map(repr, BACKENDS))
        raise ParameterError("backend", f"backend must be {known}, not {name!r}.")
    return make()
