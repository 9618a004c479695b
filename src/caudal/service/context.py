"""Who asks, and how urgent it is: what travels with a request besides its content."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What every kind of work carries along.

    Attributes:
        priority: Lower runs first (vLLM's convention).
        cache_salt: Shares cached prefixes only with requests of the same salt.
        user: Named in the log.
    """

    priority: int = 0
    cache_salt: str | None = None
    user: str | None = None


NO_CONTEXT = RequestContext()
