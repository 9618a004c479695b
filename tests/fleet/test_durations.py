"""How long models stay, as users write it and as they are told."""

from __future__ import annotations

import pytest

from caudal.fleet.durations import FOREVER, duration_text, keep_alive_seconds


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("300ms", 0.3),
        ("90", 90),
        (" 90s ", 90),
        ("+2m", 120),
        (300, 300),
        (0.5, 0.5),
        (0, 0),
        ("0", 0),
        ("0s", 0),
        (-1, FOREVER),
        ("-1", FOREVER),
        ("-5m", FOREVER),
        (float("inf"), FOREVER),
        (10**400, FOREVER),
        (-(10**400), FOREVER),
    ],
)
def test_durations_are_those_of_go_or_seconds(given: str | float, seconds: float):
    assert keep_alive_seconds(given) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "given",
    ["", "m", "5 m", "5d", "1h 30m", "--1", "1e3", "\u0665m", "9" * 99, float("nan"), True],
)
def test_what_is_none_is_refused(given: str | float):
    with pytest.raises(ValueError, match="must be a duration such as 5m"):
        keep_alive_seconds(given)


def test_durations_in_words():
    assert [*map(duration_text, (0, 0.2, 61, 3600, 3601, 90061, FOREVER))] == [
        *("0 s", "1 s", "1 m 1 s", "1 h", "1 h 1 s", "25 h 1 m", "for ever")
    ]
