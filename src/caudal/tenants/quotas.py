"""How much a key may ask: requests and tokens a minute, and requests at a time, exactly.

In no 60 seconds, wherever they begin, are more requests taken than `requests_per_minute`. Requests
that are refused don't count.

Tokens are known only afterwards. A request that runs counts with an estimate, of its prompt and of
what its answer may have; one that has ended counts for 60 seconds with what it took: tokens of its
prompt that weren't in the cache, and those of its answer. One is taken where its estimate has room
beside all that counts. What is only found too large afterwards keeps later ones waiting.

An estimate is never more than the limit, so that what may be long gets its turn too, alone. A
prompt that is longer than the limit all by itself is never taken.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from caudal.errors import LimitError
from caudal.tenants.rules import Tenant

WINDOW = 60.0
"""Seconds in which what was taken counts."""

BUSY_SECONDS = 1
"""When a client is told to come back that has as many requests running as it may."""

REQUESTS = "requests_per_minute"
TOKENS = "tokens_per_minute"
CONCURRENT = "concurrent_requests"


@dataclass(frozen=True, slots=True)
class Estimate:
    """About how many tokens a request will take.

    Attributes:
        prompt: Of its prompt.
        output: Of its answers, at most.
    """

    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How a limit stands.

    Attributes:
        limit: What may be taken in a minute.
        remaining: What may be taken now.
        reset: Seconds until nothing of what was taken counts any more, if nothing more is.
    """

    limit: int
    remaining: int
    reset: float


class _Minute:
    """What was taken in the last `WINDOW` seconds."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, int]] = deque()  # when, how much; the oldest first
        self._sum = 0

    def used(self, now: float) -> int:
        # As `seconds_until` has it: `now - WINDOW` may be rounded otherwise.
        while self._taken and self._taken[0][0] + WINDOW <= now:
            self._sum -= self._taken.popleft()[1]
        return self._sum

    def take(self, now: float, amount: int) -> None:
        if amount > 0:
            self._taken.append((now, amount))
            self._sum += amount

    def seconds_until(self, now: float, at_most: int) -> float:
        """When it will be no more than this; infinite if never."""
        left = self.used(now)
        if left <= at_most:
            return 0.0
        for when, amount in self._taken:
            left -= amount
            if left <= at_most:
                return when + WINDOW - now
        return math.inf

    def reset(self, now: float) -> float:
        return self._taken[-1][0] + WINDOW - now if self.used(now) else 0.0


class _Account:
    """What one tenant has taken."""

    def __init__(self) -> None:
        self.requests = _Minute()
        self.tokens = _Minute()
        self.reserved = 0  # tokens of what runs
        self.running = 0


class Admission:
    """A request that was taken, until it has ended.

    Args:
        account: The tenant's.
        tenant: It.
        reserved: Tokens that were reckoned with.
        clock: See `Quotas`.
    """

    def __init__(
        self, account: _Account, tenant: Tenant, reserved: int, clock: Callable[[], float]
    ) -> None:
        self.tenant = tenant
        self._account = account
        self._reserved = reserved
        self._clock = clock
        self._settled = False

    def settle(self, tokens: int) -> None:
        """It has ended, and taken this many tokens. Only the first call counts."""
        if self._settled:
            return
        self._settled = True
        account = self._account
        account.running -= 1
        account.reserved -= self._reserved
        account.tokens.take(self._clock(), tokens)


class Quotas:
    """What all tenants have taken. For one thread.

    Args:
        clock: Seconds, monotonic: setting the time of day changes no quota.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def admit(self, tenant: Tenant, estimate: Callable[[], Estimate]) -> Admission | None:
        """Take a request, or refuse it.

        Args:
            tenant: Whose it is.
            estimate: Called where tokens are limited.

        Returns:
            What is to be settled once it has ended; None of a tenant without quotas.

        Raises:
            LimitError: It would be too many, or too much.
        """
        rules = tenant.rules
        if not rules.has_quota:
            return None
        now = self._clock()
        account = self._accounts.setdefault(tenant.id, _Account())
        most = rules.concurrent_requests
        if most is not None and account.running >= most:
            raise LimitError(
                CONCURRENT,
                f"The key {tenant.name!r} may have {most} requests running at a time, and has. "
                f"Retry in {BUSY_SECONDS} s.",
                retry_after=BUSY_SECONDS,
            )
        if rules.requests_per_minute is not None:
            _check_requests(account, tenant, rules.requests_per_minute, now)
        reserved = 0
        if rules.tokens_per_minute is not None:
            reserved = _reserve(account, tenant, rules.tokens_per_minute, estimate(), now)
        # From here on it counts.
        account.requests.take(now, 1)
        account.reserved += reserved
        account.running += 1
        return Admission(account, tenant, reserved, self._clock)

    def standings(self, tenant: Tenant) -> Iterator[tuple[str, Standing]]:
        """How the limits of a minute stand that a tenant has: `requests`, `tokens`."""
        account = self._accounts.get(tenant.id) or _Account()
        now, rules = self._clock(), tenant.rules
        if (limit := rules.requests_per_minute) is not None:
            left = max(limit - account.requests.used(now), 0)
            yield "requests", Standing(limit, left, account.requests.reset(now))
        if (limit := rules.tokens_per_minute) is not None:
            left = max(limit - account.tokens.used(now) - account.reserved, 0)
            reset = WINDOW if account.reserved else account.tokens.reset(now)
            yield "tokens", Standing(limit, left, reset)


def _check_requests(account: _Account, tenant: Tenant, limit: int, now: float) -> None:
    seconds = account.requests.seconds_until(now, limit - 1)
    if seconds > 0:
        after = math.ceil(seconds)
        raise LimitError(
            REQUESTS,
            f"The key {tenant.name!r} may make {limit} requests a minute, and has. Retry in "
            f"{after} s.",
            retry_after=after,
        )


def _reserve(account: _Account, tenant: Tenant, limit: int, estimate: Estimate, now: float) -> int:
    if estimate.prompt > limit:
        raise LimitError(
            TOKENS,
            f"The prompt has about {estimate.prompt} tokens, and the key {tenant.name!r} may use "
            f"{limit} a minute.",
        )
    tokens = min(estimate.prompt + estimate.output, limit)
    seconds = account.tokens.seconds_until(now, max(limit - account.reserved - tokens, 0))
    if seconds > 0 or account.reserved + tokens > limit:
        after = max(math.ceil(seconds), BUSY_SECONDS)
        raise LimitError(
            TOKENS,
            f"The key {tenant.name!r} may use {limit} tokens a minute; of these "
            f"{account.tokens.used(now)} are used, {account.reserved} are reckoned with for what "
            f"runs, and this request may take {tokens}. Retry in {after} s.",
            retry_after=after,
        )
    return tokens
