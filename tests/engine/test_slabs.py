"""Memory for pieces: nobody's twice, within its limit, and for sizes as they come."""

from __future__ import annotations

from caudal.backends.executor import Bytes
from caudal.engine.tiers.slabs import Slabs

LIMIT = 8000


def all_of(slabs: Slabs, size: int) -> list[Bytes]:
    """As many as there are."""
    taken = []
    while (data := slabs.take(size)) is not None:
        taken.append(data)
    return taken


def test_what_somebody_holds_a_part_of_is_nobody_elses() -> None:
    slabs = Slabs(LIMIT)
    taken = all_of(slabs, 100)
    assert len(taken) == LIMIT // 100
    for number, data in enumerate(taken):
        data[:] = number
    assert all((data == number).all() for number, data in enumerate(taken))
    part, view = taken[3][10:20], taken[5].data
    del data
    taken.clear()
    again = all_of(slabs, 100)
    assert len(again) == LIMIT // 100 - 2
    for data in again:
        data[:] = 255
    assert part.tolist() == [3] * 10
    assert view.tolist() == [5] * 100


def test_other_sizes_get_what_isnt_used_but_not_each_time() -> None:
    slabs = Slabs(LIMIT)
    small = all_of(slabs, 100)
    assert slabs.take(700) is None
    del small[: LIMIT // 800]  # one of eight arrays
    large = slabs.take(700)
    assert large is not None, "the first of its size has what it finds"
    small += all_of(slabs, 100)
    del large
    assert slabs.take(100) is None, "or large ones would have no place left in the end"
    assert slabs.take(700) is not None
    small.clear()
    assert len(all_of(slabs, 700)) >= 10
    assert slabs.take(LIMIT + 1) is None
