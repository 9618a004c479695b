"""Quotas, by a clock of the test's own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.errors import LimitError
from caudal.tenants.quotas import Admission, Estimate, Quotas, Standing
from caudal.tenants.rules import KeyRules, Tenant


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tenant(**rules: int) -> Tenant:
    return Tenant("alice", "alice", KeyRules(**rules))  # type: ignore[arg-type]


def admit(quotas: Quotas, of: Tenant, prompt: int = 0, output: int = 0) -> Admission:
    taken = quotas.admit(of, lambda: Estimate(prompt, output))
    assert taken is not None
    return taken


def refusal(quotas: Quotas, of: Tenant, prompt: int = 0, output: int = 0) -> LimitError:
    with pytest.raises(LimitError) as caught:
        admit(quotas, of, prompt, output)
    assert caught.value.status == 429
    assert "alice" in str(caught.value)
    return caught.value


def test_who_has_no_quotas_has_no_account():
    assert Quotas().admit(tenant(max_n=1), lambda: pytest.fail("not asked")) is None


@settings(max_examples=60, deadline=None)
@given(
    limit=st.integers(1, 6),
    gaps=st.lists(st.floats(0, 40, allow_nan=False), max_size=60),
    seed=st.integers(0, 2**31),
)
def test_no_minute_has_more_requests_than_its_limit(limit: int, gaps: list[float], seed: int):
    quotas, clock = Quotas(clock := Clock()), clock
    of, taken, running = tenant(requests_per_minute=limit), [], []
    drawn = random.Random(seed)
    for gap in gaps:
        clock.now += gap
        if running and drawn.random() < 0.5:
            running.pop().settle(10)  # which makes no room for others
        room = limit - sum(1 for each in taken if each + 60 > clock.now)
        if room:
            running.append(admit(quotas, of))
            taken.append(clock.now)
        else:
            after = refusal(quotas, of).retry_after
            assert after is not None
            clock.now += after  # who comes back then is taken
            running.append(admit(quotas, of))
            taken.append(clock.now)


def test_requests_at_a_time():
    quotas, of = Quotas(), tenant(concurrent_requests=2)
    first, _ = admit(quotas, of), admit(quotas, of)
    error = refusal(quotas, of)
    assert (error.limit, error.retry_after) == ("concurrent_requests", 1)
    first.settle(0)
    first.settle(0)  # which counts once
    admit(quotas, of)
    refusal(quotas, of)
    assert list(quotas.standings(of)) == []  # there is no such limit of a minute


def test_tokens_are_reckoned_with_and_then_settled():
    clock = Clock()
    quotas, of = Quotas(clock), tenant(tokens_per_minute=100)
    first = admit(quotas, of, 20, 30)
    assert dict(quotas.standings(of)) == {"tokens": Standing(100, 50, 60.0)}
    error = refusal(quotas, of, 1, 50)
    assert (error.limit, error.retry_after) == ("tokens_per_minute", 1)
    admit(quotas, of, 10, 40).settle(0)  # it was refused, or its client went
    clock.now += 30
    first.settle(25)
    clock.now += 10
    assert dict(quotas.standings(of)) == {"tokens": Standing(100, 75, 50.0)}
    second = admit(quotas, of, 75)
    assert refusal(quotas, of, 1).retry_after == 50  # when those of the first don't count any more
    second.settle(150)  # twice as many as were reckoned with
    assert dict(quotas.standings(of)) == {"tokens": Standing(100, 0, 60.0)}
    clock.now += 59.5
    assert refusal(quotas, of, 1).retry_after == 1
    clock.now += 0.5
    assert dict(quotas.standings(of)) == {"tokens": Standing(100, 100, 0.0)}


def test_what_may_be_long_gets_its_turn_alone_and_what_is_too_long_never():
    clock = Clock()
    quotas, of = Quotas(clock), tenant(tokens_per_minute=100, requests_per_minute=10)
    admit(quotas, of, 100, 5000).settle(70)
    assert refusal(quotas, of, 10, 5000).retry_after == 60
    assert refusal(quotas, of, 101).retry_after is None
    # What was refused didn't count.
    assert dict(quotas.standings(of))["requests"].remaining == 9
    clock.now += 60
    admit(quotas, of, 10, 5000)
