"""What a fuzz target is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

Run = Callable[[bytes], bool]
"""Feeds an input to what is tested: True if it was accepted, False if it was refused as documented;
whatever else comes out is a fault."""

Mutate = Callable[[bytes, int], bytes]
"""A new input from another one and a seed for random numbers."""


def refused_in_words(run: Run) -> Run:
    """Takes a `ModelLoadError` for a refusal."""
    from caudal.errors import ModelLoadError

    def refusing(data: bytes) -> bool:
        try:
            return run(data)
        except ModelLoadError:
            return False

    return refusing


SEEDS = Path(__file__).parent / "seeds"


@dataclass(frozen=True, slots=True)
class Target:
    """One parser of foreign bytes.

    Attributes:
        name: What `make fuzz TARGET=…` calls it; its seeds are in `seeds/NAME/`.
        open: Makes what is needed once; imports what is tested only then, so that it can be
            instrumented.
        mutate: How inputs are changed where flipping bytes seldom gives sensible ones.
    """

    name: str
    open: Callable[[], AbstractContextManager[Run]]
    mutate: Mutate | None = None

    @property
    def seeds(self) -> list[Path]:
        """Inputs to begin with."""
        return sorted((SEEDS / self.name).iterdir())
