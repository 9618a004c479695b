from __future__ import annotations

from caudal.engine.space import MAX_SALT, Space


def salt_of(salt: str) -> str:
    kept = Space.of(salt).salt
    assert kept is not None
    return kept


def test_a_short_salt_is_kept_as_it_is():
    assert Space.of(None) == Space()
    assert salt_of("") == ""
    assert salt_of("x" * MAX_SALT) == "x" * MAX_SALT


def test_a_long_salt_is_kept_as_its_digest_and_stays_apart_from_every_other():
    long = ["x" * 10**6, "x" * 10**6 + "y", "\ud800" * 200, "é" * (MAX_SALT + 1)]
    kept = [salt_of(salt) for salt in long]
    assert all(len(salt) < 200 for salt in kept)
    assert kept == [salt_of(salt) for salt in long]
    assert len({*kept, *map(salt_of, kept)}) == 2 * len(long)
