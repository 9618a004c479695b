"""What each tenant has had of a lane, and what of it waits there.

Virtual token counters (VTC; "Fairness in Serving Large Language Models", OSDI '24, arXiv
2401.00588): each tenant's counter grows by what is computed for it, divided by its weight, and
whoever's is lowest goes next. A tenant that had nothing waiting is lifted to those that have, so
that nobody saves up turns while idle. Between two tenants that both always have something waiting,
the counters then differ by no more than a prompt and what all that run have generated, twice.

Counted is what was really computed, once: neither what the prefix cache had (as "Locality-aware
Fair Scheduling in LLM Serving", arXiv 2501.14312, has it) nor what is computed again after a
preemption, which is nobody's wish.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from caudal.engine.sequence import Sequence

OUTPUT_COST = 2
"""What a token of an answer counts, in tokens of a prompt; as in the paper."""


class Account:
    """One tenant's.

    Attributes:
        weight: Its share.
        served: Its virtual counter: tokens, by weight.
        served_at: When one of its sequences was admitted last.
        waiting: Its sequences that have never run, by priority, each in order of arrival.
            Dictionaries serve as ordered sets.
        num_waiting: How many they are.
        live: How many it has in the lane, with those that run or were preempted.
    """

    __slots__ = ("live", "num_waiting", "served", "served_at", "waiting", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.served = 0.0
        self.served_at = -math.inf
        self.waiting: dict[int, dict[Sequence, None]] = {}
        self.num_waiting = 0
        self.live = 0

    def urgency(self, now: float, ageing: float) -> int:
        """The best priority of what waits; better by one for every `ageing` seconds in which
        nothing of it was admitted.

        A tenant's own backlog gives it no precedence over others, however old it is.
        """
        return min(
            priority
            - math.floor((now - max(next(iter(bucket)).group.submitted, self.served_at)) / ageing)
            for priority, bucket in self.waiting.items()
        )

    def charge(self, seq: Sequence) -> None:
        """Enter what has been computed of a running sequence since the last time."""
        length, charged = seq.memory.length, seq.charged
        if length <= charged:
            return
        prompt = len(seq.group.prompt)
        cost = length - charged
        if length > prompt:
            cost += (OUTPUT_COST - 1) * (length - max(charged, prompt))
        self.served += cost / self.weight
        seq.charged = length


class Tenants:
    """Those with something in a lane, or with a counter that still matters.

    Where there is one only, as on a server without keys, nothing is compared, and its counter is
    brought up to date when another comes.
    """

    def __init__(self) -> None:
        self._accounts: dict[str | None, Account] = {}
        self._left: Account | None = None  # had something waiting until lately
        self.waiting: dict[Account, None] = {}

    @property
    def several(self) -> bool:
        """Whether anything has to be compared."""
        return len(self._accounts) > 1

    def account_of(self, seq: Sequence) -> Account:
        """Whose a sequence is that has entered and not left."""
        return self._accounts[seq.group.request.tenant]

    def num_waiting(self, tenant: str | None) -> int:
        """Sequences of a tenant that have never run. Safe to call from other threads."""
        account = self._accounts.get(tenant)
        return 0 if account is None else account.num_waiting

    def all_waiting(self) -> Iterator[tuple[str | None, int]]:
        """The tenants that have something waiting, and how much. Safe to call likewise."""
        for tenant, account in list(self._accounts.items()):
            if number := account.num_waiting:
                yield tenant, number

    def weights(self) -> dict[str | None, float]:
        """The weights of tenants that have something waiting. Safe to call from other threads."""
        return {
            tenant: account.weight
            for tenant, account in list(self._accounts.items())
            if account.num_waiting
        }

    def enter(self, seq: Sequence, running: Iterable[Sequence]) -> None:
        """A new sequence waits.

        Args:
            seq: The sequence.
            running: All that run in the lane.
        """
        request = seq.group.request
        account = self._accounts.get(request.tenant)
        if account is None:
            account = self._accounts[request.tenant] = Account(request.weight)
        account.weight = request.weight
        account.live += 1
        if not account.num_waiting:
            if self.several:
                self._lift(account, running)
            self.waiting[account] = None
        account.waiting.setdefault(request.priority, {})[seq] = None
        account.num_waiting += 1

    def _lift(self, account: Account, running: Iterable[Sequence]) -> None:
        """Bring the counter of a tenant that had nothing waiting up to the others'."""
        self.settle(running)
        if self.waiting:
            level = min(other.served for other in self.waiting)
        elif self._left is not None:
            level = self._left.served
        else:
            return
        account.served = max(account.served, level)

    def withdraw(self, seq: Sequence) -> None:
        """A sequence that has never run waits no more."""
        account, priority = self.account_of(seq), seq.group.request.priority
        bucket = account.waiting[priority]
        del bucket[seq]
        if not bucket:
            del account.waiting[priority]
        account.num_waiting -= 1
        if not account.num_waiting:
            del self.waiting[account]
            self._left = account

    def join(self, seq: Sequence) -> None:
        """A sequence has come of one that runs."""
        self.account_of(seq).live += 1

    def leave(self, seq: Sequence) -> None:
        """A sequence has ended; of one that ran, everything has been charged."""
        self.account_of(seq).live -= 1
        if self.several:
            self._forget()

    def settle(self, running: Iterable[Sequence]) -> None:
        """Bring all counters up to date."""
        for seq in running:
            self._accounts[seq.group.request.tenant].charge(seq)

    def _forget(self) -> None:
        """Forget those that have nothing here and would be lifted if they came again."""
        level = min((each.served for each in self._accounts.values() if each.live), default=None)
        for tenant, account in list(self._accounts.items()):
            if not account.live and (level is None or account.served <= level):
                del self._accounts[tenant]
        if level is None:
            self._left = None
