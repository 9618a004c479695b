"""What can be pulled, and what is said of a name that isn't here."""

from __future__ import annotations

import difflib

from caudal.errors import ModelNotFoundError
from caudal.store.known_models import KnownModel, find_known_model, known_names
from caudal.store.names import (
    DEFAULT_HOST,
    FileReference,
    KeptReference,
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
    known = known_model(reference)
    size = f" ({known.size / 1e6:.0f} MB)" if known else ""
    meant = meant_instead(reference) if isinstance(reference, RegistryName) else ""
    return ModelNotFoundError(
        f"{name} is not on this machine yet. Fetch it with: caudal pull {name}{size}{meant}"
    )


def meant_instead(name: RegistryName) -> str:
    """A hint for who has mistyped the name of a model that Caudal knows."""
    if known_model(name) is not None or name.host.lower() != DEFAULT_HOST:
        return ""
    names = known_names()
    close = [known for known in names if known.startswith(name.shown.lower())]
    close = close or difflib.get_close_matches(name.shown.lower(), names, n=1, cutoff=0.5)
    return f". Did you mean {close[0]}?" if close else ""
