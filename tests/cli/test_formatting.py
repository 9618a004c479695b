from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from caudal.cli.formatting import format_age, format_bytes, format_count


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (98_362_432, "98.4 MB"),
        (253_113_024, "253 MB"),
        (999_600_000, "1.0 GB"),
        (4_000_000_000_000, "4.0 TB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (12, "12"),
        (1500, "1.5 thousand"),
        (134_515_008, "135 million"),
        (999_900_000, "1.0 billion"),
        (7_200_000_000, "7.2 billion"),
    ],
)
def test_counts(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (59, "just now"),
        (60, "1 minute ago"),
        (7200, "2 hours ago"),
        (86_400 * 3, "3 days ago"),
    ],
)
def test_ages(seconds: int, text: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert format_age(now - timedelta(seconds=seconds), now) == text
