"""Tenants get their shares of the engine, whatever others ask for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caudal.engine.arriving import Arriving
from caudal.engine.request import Generate, Request
from caudal.engine.tenants import OUTPUT_COST
from caudal.errors import QueueFullError
from caudal.sampling_params import SamplingParams
from support.engine_harness import Harness

PLACES = 4
LONGEST_PROMPT, LONGEST_ANSWER = 12, 10


def busy_harness(**config: object) -> Harness:
    """An engine in which places are what is scarce."""
    options = {"max_num_seqs": PLACES, "max_num_batched_tokens": 16, "max_queue": 2000}
    return Harness(num_blocks=200, prefix_cache=False, **(options | config))


def ask(harness: Harness, tenant: str | None, *, prompt: int = 8, answer: int = 8, **more) -> str:
    more.setdefault("seed", len(harness.requests))
    return harness.submit(
        [1 + len(harness.requests) % 40] * prompt,
        tenant=tenant,
        max_tokens=answer,
        ignore_eos=True,
        **more,
    )


def computed(harness: Harness) -> int:
    return sum(map(sum, harness.executor.batches))


def ended(harness: Harness) -> list[str]:
    """Tenants, one for each request that has ended, in order."""
    return [
        harness.requests[update.request_id].tenant or ""
        for update in harness.updates
        if update.finish_reason is not None
    ]


@pytest.mark.parametrize("flood_priority", [0, 5])
@pytest.mark.parametrize("minutes", [0.0, 30.0])
@pytest.mark.parametrize("schedule", ["prefix", "fcfs"])
def test_a_thousand_requests_delay_one_by_a_bounded_number_of_tokens(
    schedule: str, minutes: float, flood_priority: int
) -> None:
    """By what those that run have left, and what is computed beside its own prompt."""
    harness = busy_harness(schedule=schedule)
    for _ in range(1000):
        ask(harness, "greedy", priority=flood_priority)
    for _ in range(50):
        harness.step()
    harness.clock.now += minutes * 60  # the flood's age is no precedence
    for _ in range(5):
        harness.step()
    before = computed(harness)
    one = ask(harness, "modest", priority=flood_priority)
    while not harness.output(one):
        harness.step()
    # The place of whoever ends next is its; then its prompt is computed beside the others' tokens.
    assert computed(harness) - before <= PLACES * (8 + 8) + 2 * 16
    assert harness.engine.num_requests > 900


def test_shares_go_by_weight() -> None:
    harness = busy_harness()
    for _ in range(300):
        ask(harness, "a", weight=3.0)
        ask(harness, "b", weight=1.0)
    for _ in range(400):
        harness.step()
    assert 2.7 < ended(harness).count("a") / ended(harness).count("b") < 3.3


def test_what_was_not_used_while_idle_is_not_saved_up() -> None:
    harness = busy_harness()
    for _ in range(200):
        ask(harness, "busy")
    for _ in range(100):
        harness.step()
    before = len(ended(harness))
    for _ in range(200):
        ask(harness, "late")
    for _ in range(100):
        harness.step()
    late = ended(harness)[before:]
    assert abs(late.count("busy") - late.count("late")) <= 2 * PLACES


def test_priorities_come_before_shares_and_nobody_starves() -> None:
    harness = busy_harness(ageing=5.0)
    for _ in range(100):
        ask(harness, "greedy")
    for _ in range(20):
        harness.step()
    poor = ask(harness, "poor", priority=3)
    urgent = [ask(harness, "greedy", priority=-1) for _ in range(PLACES)]
    while not all(harness.output(each) for each in urgent):
        harness.step()
    assert not harness.output(poor)
    submitted = harness.clock.now
    while not harness.output(poor):
        ask(harness, "greedy")
        harness.clock.now += 0.5
        harness.step()
    assert 0.5 < harness.clock.now - submitted <= 5.0 * (3 + 2)


def test_who_holds_most_gives_way() -> None:
    """When memory runs out, of tenants; not the one that came last."""
    harness = Harness(num_blocks=15, max_model_len=60, max_num_seqs=3, prefix_cache=False)
    for _ in range(2):
        ask(harness, "a", answer=20)
    modest = ask(harness, "b", answer=20)
    while not harness.engine.stats().preemptions:
        harness.step()
        harness.check_invariants()
    assert len(harness.output(modest)) > 0
    scheduler = harness.engine._scheduler
    assert [seq.group.request.tenant for seq in scheduler.lanes.running] == ["a", "b"]
    harness.run()
    harness.check_outputs()


def test_inputs_to_embed_share_too() -> None:
    harness = busy_harness(embedding_batch_size=1)
    for number in range(200):
        harness.submit([1 + number % 40] * 8, pooling="mean", tenant="greedy")
    for _ in range(3):
        harness.step()
    one = harness.submit([1] * 8, pooling="mean", tenant="modest")
    before = computed(harness)
    while (one, 0) not in harness.ends:
        harness.step()
    assert computed(harness) - before <= 3 * 16


def test_a_tenant_may_have_so_many_waiting() -> None:
    harness = busy_harness()
    for _ in range(PLACES + 2):
        ask(harness, "a", max_waiting=2)
    with pytest.raises(QueueFullError) as caught:
        ask(harness, "a", max_waiting=2)
    assert (caught.value.limit, caught.value.most) == ("max_waiting", 2)
    ask(harness, "b", max_waiting=2)
    ask(harness, None)


def test_a_queue_is_never_full_of_one_tenants_alone() -> None:
    harness = busy_harness(max_queue=12)
    for _ in range(PLACES + 12):
        ask(harness, "a")
    taken = {"b": 0, "c": 0}
    for tenant, weight in (("b", 2.0), ("c", 1.0)):
        with pytest.raises(QueueFullError) as caught:
            for _ in range(100):
                ask(harness, tenant, weight=weight)
                taken[tenant] += 1
        assert (caught.value.limit, caught.value.most) == ("max_queue", 12)
    assert taken == {"b": 8, "c": 3}  # 12 · 2/3, 12 · 1/4
    with pytest.raises(QueueFullError):
        ask(harness, "a")
    ask(harness, "d", weight=0.001)  # one at least
    harness.run()
    harness.check_invariants()


def test_those_that_are_only_arriving_count() -> None:
    harness = busy_harness(max_queue=4)
    arriving = Arriving()

    def request(tenant: str) -> Request:
        return Request(
            request_id=f"{tenant}{next(numbers)}",
            prompt=[1],
            work=Generate(SamplingParams()),
            tenant=tenant,
            max_waiting=3,
        )

    numbers = itertools.count()
    for tenant in ("a", "a", "a", "b", "b", "b", "b"):  # four of them get places
        harness.engine.check(request(tenant), arriving)
        arriving.add(request(tenant))
    for tenant in ("a", "b"):
        with pytest.raises(QueueFullError) as caught:
            harness.engine.check(request(tenant), arriving)
        assert caught.value.limit == "max_waiting"
    harness.engine.check(request("c"), arriving)
    for tenant in ("a", "a", "a", "b", "b", "b", "b"):
        arriving.remove(request(tenant))
    assert (arriving.total, arriving.weights()) == (0, {})


def served(harness: Harness, tenant: str) -> int:
    """What a tenant has had, of its requests that have begun to be answered."""
    return sum(
        len(request.prompt) + OUTPUT_COST * len(harness.output(request_id))
        for request_id, request in harness.requests.items()
        if request.tenant == tenant and harness.output(request_id)
    )


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, LONGEST_PROMPT), st.integers(1, LONGEST_ANSWER)),
        min_size=2,
        max_size=6,
    ),
    weight=st.sampled_from([1.0, 2.0, 0.5]),
    n=st.integers(1, 2),
)
def test_tenants_that_always_wait_never_drift_apart(
    sizes: list[tuple[int, int]], weight: float, n: int
) -> None:
    harness = busy_harness()
    bound = 2 * (LONGEST_PROMPT + OUTPUT_COST * LONGEST_ANSWER * PLACES) / min(1.0, weight)

    def requests(shift: int) -> Iterator[tuple[int, int]]:
        return itertools.cycle(sizes[shift:] + sizes[:shift])

    rest = {"a": requests(0), "b": requests(1)}
    for _ in range(120):
        for tenant, own in (("a", 1.0), ("b", weight)):
            # More than an iteration may admit: who runs out of them doesn't always wait.
            while harness.engine._scheduler.lanes.num_new_of(tenant) <= PLACES:
                prompt, answer = next(rest[tenant])
                ask(harness, tenant, prompt=prompt, answer=answer, weight=own, n=n)
        harness.step()
        assert abs(served(harness, "a") - served(harness, "b") / weight) <= bound
