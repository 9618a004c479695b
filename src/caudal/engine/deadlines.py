"""When requests run out of time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from caudal.engine.config import EngineConfig
from caudal.engine.request import Pool
from caudal.engine.sequence import SequenceGroup


class Deadlines:
    """The deadlines of live requests, the earliest at hand.

    Args:
        config: Timeouts of requests that set none themselves.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._heap: list[tuple[float, int, bool, SequenceGroup]] = []
        self._live_after_sweep = 0

    @property
    def earliest(self) -> float | None:
        """The next time at which something may have to end; it may have ended before."""
        return self._heap[0][0] if self._heap else None

    def add(self, group: SequenceGroup) -> None:
        """Watch a new request, if it has a deadline."""
        request, config = group.request, self._config
        for own, default, first_token in (
            (request.first_token_timeout, config.first_token_timeout, True),
            (request.timeout, config.request_timeout, False),
        ):
            seconds = default if own is None else own
            if seconds is not None and not (first_token and isinstance(request.work, Pool)):
                due = group.submitted + seconds
                heapq.heappush(self._heap, (due, group.arrival, first_token, group))
        if len(self._heap) > 2 * self._live_after_sweep + 64:
            # Requests that ended in time would otherwise be kept until their deadline.
            self._heap = [entry for entry in self._heap if entry[3].sequences]
            heapq.heapify(self._heap)
            self._live_after_sweep = len(self._heap)

    def expire(self, now: float) -> Iterator[tuple[SequenceGroup, str, str]]:
        """Take out what is due; yields each live request that missed one, which limit that was,
        and what happened, in words.
        """
        while self._heap and self._heap[0][0] <= now:
            _, _, first_token, group = heapq.heappop(self._heap)
            if not group.sequences or (first_token and group.first_token is not None):
                continue
            limit = "first_token_timeout" if first_token else "timeout"
            what = "no token" if first_token else "the answer was not complete"
            seconds = now - group.submitted
            yield group, limit, f"The request timed out: {what} after {seconds:.1f} s."
