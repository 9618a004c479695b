"""A model that the fleet may have: how it is started, and what requests call it."""

from __future__ import annotations

from dataclasses import dataclass

from caudal.loading.options import LoadOptions
from caudal.workers.launcher import ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOffer:
    """A model that there is, loaded or not.

    Attributes:
        source: How it is started.
        names: Names that requests may use, its own first. These are shown.
        other_names: More of them.
        size: Bytes of its files.
        created: Unix time of its files, in seconds.
        pinned: It is loaded at the start, and makes way for nobody.
        keep_alive: Seconds that it stays where nobody says otherwise; None for the fleet's default.
        version: What is another where the model is another, though its name be the same.
        load: How it runs; None for the fleet's default.
    """

    source: ModelSource
    names: tuple[str, ...]
    other_names: tuple[str, ...] = ()
    size: int = 0
    created: int = 0
    pinned: bool = False
    keep_alive: float | None = None
    version: str = ""
    load: LoadOptions | None = None

    @property
    def name(self) -> str:
        """Its own name."""
        return self.names[0]
