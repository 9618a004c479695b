"""Who asks, how urgent it is, how long it may take: what travels with work besides its content."""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from caudal.engine.request import BACKGROUND as BACKGROUND  # for who makes contexts

N = TypeVar("N", int, float)


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """What every kind of work carries along.

    Attributes:
        priority: Lower runs first (vLLM's convention).
        cache_salt: Shares cached prefixes only with requests of the same salt.
        adapter: The name of the adapter that the model answers with; None: the bare model answers.
        user: Named in the log.
        request_id: Likewise; whoever asked knows it.
        tenant: Whose it is who pays: requests of one tenant share a place in the queues. None: of
            nobody in particular, which is a tenant too.
        weight: The tenant's share of the engine's work, beside that of others.
        max_waiting: Most requests of the tenant that wait in one model's queue; None: as many as
            of all tenants may.
        max_prompt_tokens: Most tokens of all its prompts together.
        max_n: Most answers, to all its prompts together.
        max_output_tokens: Most tokens of each; one that asks for more ends there.
        arrived: When it arrived, on the monotonic clock; None: as the work is given.
        first_token_timeout: Seconds from arrival in which an answer must have begun; None: as the
            engine has it. What generates nothing has no first token.
        timeout: Seconds from arrival in which all must be done; None: as the engine has it.
    """

    priority: int = 0
    cache_salt: str | None = None
    adapter: str | None = None
    user: str | None = None
    request_id: str | None = None
    tenant: str | None = None
    weight: float = 1.0
    max_waiting: int | None = None
    max_prompt_tokens: int | None = None
    max_n: int | None = None
    max_output_tokens: int | None = None
    arrived: float | None = None
    first_token_timeout: float | None = None
    timeout: float | None = None

    def begun(self) -> RequestContext:
        """The same, of a request that has arrived now if not before."""
        return self if self.arrived is not None else replace(self, arrived=time.monotonic())

    def held_to(
        self, max_prompt_tokens: int | None, max_n: int | None, max_output_tokens: int | None
    ) -> RequestContext:
        """The same, of a request that may no more than this, either."""
        if max_prompt_tokens is None and max_n is None and max_output_tokens is None:
            return self
        return replace(
            self,
            max_prompt_tokens=smaller(self.max_prompt_tokens, max_prompt_tokens),
            max_n=smaller(self.max_n, max_n),
            max_output_tokens=smaller(self.max_output_tokens, max_output_tokens),
        )

    def seconds_since_arrival(self) -> float:
        """How long ago a request arrived that has `begun`."""
        assert self.arrived is not None
        return time.monotonic() - self.arrived

    def time_allowed(
        self, timeout: float | None, first_token_timeout: float | None, *, generates: bool
    ) -> tuple[float | None, str]:
        """Seconds from arrival in which it must have been submitted, and the limit that says so;
        None for as long as it takes.

        Args:
            timeout: How long requests have that don't say so.
            first_token_timeout: How long their first token has.
            generates: Whether there will be one.
        """
        seconds = self.timeout if self.timeout is not None else timeout
        if generates:
            own = self.first_token_timeout
            first = own if own is not None else first_token_timeout
            if first is not None and (seconds is None or first < seconds):
                return first, "first_token_timeout"
        return seconds, "timeout"


def smaller(one: N | None, other: N | None) -> N | None:
    """The smaller of two limits, of which None is none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


NO_CONTEXT = RequestContext()
