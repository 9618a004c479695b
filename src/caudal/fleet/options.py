"""What a user may choose about how models come and go, and what that leaves each of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from caudal.fleet.offer import ModelOffer
from caudal.fleet.policy import PAUSE, TURN, Bounds, MemoryNeed
from caudal.loading.options import LoadOptions
from caudal.workers.launcher import ModelPlan

SHARE_OF_ONE = 4
"""A model's sequences get at most this part of the memory of all, where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What a user may choose about how models come and go.

    Attributes:
        memory: Bytes that all models may have together.
        load: How those of them run that have no options of their own.
        max_loaded: Most models that are loaded at a time; None for as many as fit.
        keep_alive: Seconds that a model stays loaded while nobody asks anything of it.
        max_waiting: Most requests that wait for one model to be loaded; whom it is loaded for may
            in any case.
        turn: See `Bounds`.
        pause: See `Bounds`.
        first_back_off: Seconds after which a model that couldn't be loaded is tried again.
    """

    memory: int
    load: LoadOptions = field(default_factory=LoadOptions)
    max_loaded: int | None = None
    keep_alive: float = 300.0
    max_waiting: int = 1024
    turn: float = TURN
    pause: float = PAUSE
    first_back_off: float = 1.0

    @property
    def bounds(self) -> Bounds:
        """What models are to keep to."""
        return Bounds(
            memory=self.memory, max_loaded=self.max_loaded, turn=self.turn, pause=self.pause
        )

    def load_of(self, offer: ModelOffer) -> LoadOptions:
        """How a model runs."""
        return self.load if offer.load is None else offer.load

    def need(self, offer: ModelOffer, plan: ModelPlan) -> MemoryNeed:
        """What a model is to have."""
        usual = least = plan.memory
        if self.load_of(offer).kv_memory is None and plan.kinds is not None:
            least = min(plan.least, plan.memory)
            usual = max(least, min(plan.memory, self.memory // SHARE_OF_ONE))
        return MemoryNeed(fixed=plan.fixed, least=least, usual=usual)
