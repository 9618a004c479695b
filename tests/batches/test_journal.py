"""What a journal says of lines is true after any crash."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from caudal.batches.answers import Outcome
from caudal.batches.journal import Journal
from caudal.batches.usage import Usage

OUTCOMES = [
    (4, Outcome(False, Usage(1, 0, 5, 2), b'{"a": 4}')),
    (0, Outcome(True, Usage(), b'{"a": 0}')),
    (2, Outcome(False, Usage(2, 1, 7, 0), '{"a": "día"}'.encode())),
]


def written(journal: Journal) -> tuple[bytes, bytes]:
    output, errors = io.BytesIO(), io.BytesIO()
    journal.write_to(output, errors, lambda index: b"none of %d" % index)
    return output.getvalue(), errors.getvalue()


def test_whatever_is_torn_off_what_is_left_counts(tmp_path: Path):
    path = tmp_path / "journal"
    journal = Journal(path, 5)
    ends = [0]
    for each in OUTCOMES:
        journal.append([each])
        ends.append(path.stat().st_size)
    assert (journal.completed, journal.failed) == (2, 1)
    assert journal.usage == Usage(3, 1, 12, 2)
    whole = path.read_bytes()
    assert written(journal) == (
        b'{"a": "d\xc3\xada"}\n{"a": 4}\n',
        b'{"a": 0}\nnone of 1\nnone of 3\n',
    )
    journal.close()
    for size in range(0, len(whole), 3):
        for tail in (b"", b"\0" * 40, b"?\n"):
            path.write_bytes(whole[:size] + tail)
            journal = Journal(path, 5)
            kept = sum(end <= size for end in ends[1:])
            assert [index in journal for index, _ in OUTCOMES] == [n < kept for n in range(3)]
            journal.append(OUTCOMES)  # what counts already isn't written again
            journal.close()
            assert path.read_bytes() == whole


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = Journal(tmp_path / "journal", 5)
    journal.append(OUTCOMES[:1])
    before = written(journal)

    def full(descriptor: int, data: bytes, offset: int) -> int:
        real(descriptor, data[:5], offset)
        raise OSError(28, "No space left on device")

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        journal.append(OUTCOMES[1:])
    monkeypatch.undo()
    assert written(journal) == before
    journal.append(OUTCOMES[1:])
    assert journal.completed + journal.failed == 3


def test_two_processes_dont_write_one_journal(tmp_path: Path):
    journal = Journal(tmp_path / "journal", 5)
    with pytest.raises(BlockingIOError):
        Journal(tmp_path / "journal", 5)
    journal.close()
    Journal(tmp_path / "journal", 5).close()
