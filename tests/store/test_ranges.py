from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.store.transfer.partial import PartialFile, count_there
from caudal.store.transfer.ranges import Ranges

SIZE = 40


@given(st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE))), st.integers(1, SIZE))
def test_ranges_are_sets_of_bytes(pairs: list[tuple[int, int]], most: int) -> None:
    ranges = Ranges(pairs)
    there = {byte for start, end in pairs for byte in range(start, end)}
    assert ranges.count == len(there)
    assert all(before < after for (_, before), (after, _) in pairwise(ranges.ranges))
    missing = ranges.missing(SIZE, most)
    assert [byte for start, end in missing for byte in range(start, end)] == sorted(
        set(range(SIZE)) - there
    )
    assert all(0 < end - start <= most for start, end in missing)


@pytest.mark.parametrize(
    "notes",
    [
        "{",
        "[]",
        json.dumps({"size": 10, "etag": "a", "there": [[0, 11]]}),
        json.dumps({"size": 10, "etag": "a", "there": [[5, 3]]}),
        json.dumps({"size": 10, "etag": "a", "there": [[0, True]]}),
        json.dumps({"size": 10, "etag": "b", "there": [[0, 4]]}),
        json.dumps({"size": 11, "etag": "a", "there": [[0, 4]]}),
    ],
)
def test_notes_that_make_no_sense_are_not_believed(tmp_path: Path, notes: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcd")
    path.with_name("file.ranges").write_text(notes)
    with PartialFile(path, 10, "a") as partial:
        assert (partial.there.count, partial.resumed) == (0, False)
    assert path.read_bytes() == b""


def test_what_is_noted_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with PartialFile(path, 10, "a") as partial:
        partial.write(6, b"gh")
        partial.write(0, b"ab")
        partial.save()
        partial.write(2, b"cd")
    assert count_there(path, 10) == 4
    with PartialFile(path, 10, "a") as partial:
        assert partial.there.ranges == [(0, 2), (6, 8)]
    path.unlink()
    assert count_there(path, 10) == 0
