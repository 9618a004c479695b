"""When requests come: at times of their own (open loop), or when others are done (closed loop)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from caudal.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How requests, or whole conversations, arrive.

    With a rate they come whatever becomes of those before them, as those of many users do, and a
    request's latency counts from when it was due: what a server is late with in answering one isn't
    hidden by asking for the next one later (coordinated omission). Without a rate, so many are
    under way all the time, and latency counts from when a request is sent.

    Attributes:
        rate: Arrivals a second on average; None for a closed loop.
        burstiness: How irregular arrivals are: gaps of a gamma distribution with so many times the
            variance of a Poisson process, which is 1; 0 for equal gaps.
        concurrency: Most under way; None for no bound, with a rate only. Those that wait for their
            turn with a rate wait at the client, and that is latency.
    """

    rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ParameterError("rate", "rate must be positive.")
        if not 0 <= self.burstiness < math.inf:
            raise ParameterError("burstiness", "burstiness must be at least 0.")
        if self.concurrency is None and self.rate is None:
            raise ParameterError("concurrency", "either a rate or a concurrency must be given.")
        if self.concurrency is not None and self.concurrency < 1:
            raise ParameterError("concurrency", "concurrency must be at least 1.")

    def times(self, random: Random) -> Iterator[float]:
        """Seconds after the start at which each is due, without end; for a rate."""
        assert self.rate is not None
        now = 0.0
        while True:
            yield now
            now += self._gap(random) / self.rate

    def _gap(self, random: Random) -> float:
        if self.burstiness == 0:
            return 1.0
        return random.gammavariate(1 / self.burstiness, self.burstiness)
