"""The directory of pieces: what is in it after a kill, who may read it, and what goes first."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from caudal.backends.executor import Bytes
from caudal.engine.tiers import disk
from caudal.engine.tiers.disk import PAUSE_SECONDS, DiskTier
from caudal.engine.tiers.listing import UNFINISHED_SECONDS, files_of
from caudal.engine.tiers.pieces import Piece, first_link, next_link
from caudal.engine.tiers.store import PieceStore
from caudal.errors import ParameterError

SIZE = 20_000
FIRST = first_link(b"model", "somebody", None)
ON_DISK = -(-SIZE // 4096) * 4096

WRITER = """
import sys
import threading
from pathlib import Path
from test_tier_disk import opened, data_of, chain
tier = opened(Path(sys.argv[1]))
for number, piece in enumerate(chain(10_000)):
    tier.write(piece, data_of(piece))
    if number == 20:
        print("writing", flush=True)
"""


def chain(count: int, first: bytes = FIRST) -> Iterator[Piece]:
    """The pieces of a long prompt, one behind the other."""
    link = first
    for number in range(count):
        parent, link = link, next_link(link, [number] * 16)
        yield Piece(link, 0, first, 16, 16 * number + 16, parent)


def data_of(piece: Piece) -> Bytes:
    seed = int.from_bytes(piece.link[:4], "little")
    return np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)


def opened(directory: Path, limit: int | None = None, fingerprint: bytes = b"model") -> DiskTier:
    with patch.object(disk, "measured_rate", lambda home: float("inf")):
        return DiskTier(directory, fingerprint, limit)


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and path.name != ".lock"]


def test_what_a_killed_process_was_writing_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    half = tmp_path.joinpath(*next(tmp_path.rglob("*.kv")).parts[len(tmp_path.parts) :])
    unfinished = half.with_name(f"{half.name}+1.tmp")
    unfinished.write_bytes(half.read_bytes()[:100])
    long_ago = time.time() - UNFINISHED_SECONDS - 1
    os.utime(unfinished, (long_ago, long_ago))
    tier = opened(tmp_path)
    assert not unfinished.exists()
    assert len(tier) >= 20
    pieces = list(chain(len(tier) + 1))
    for piece in pieces[:-1]:
        data = tier.read(piece.key, SIZE)
        assert data is not None
        assert np.array_equal(data, data_of(piece))
    assert tier.failures == 0
    assert tier.write(pieces[-1], data_of(pieces[-1]))


def test_files_that_are_damaged_or_of_another_size_go_and_others_stay(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    one, two, three = chain(3)
    for piece in (one, two, three):
        tier.write(piece, data_of(piece))
    [path] = [path for path in files_in(tmp_path) if path.name.startswith(one.link.hex())]
    foreign = [tmp_path / "notes.txt", path.with_name("notes.txt"), tmp_path / "other" / "a.kv"]
    for file in foreign:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert tier.read(one.key, SIZE) is None
    assert not path.exists()
    assert tier.read(two.key, SIZE - 1) is None
    assert tier.failures == 2
    assert one.key not in tier
    assert three.key in tier
    tier.wipe()
    assert sorted(files_in(tmp_path)) == sorted([foreign[0], foreign[2]])


def test_only_the_owner_reads_it_and_spaces_and_models_are_apart(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "store"
    tier, other = opened(directory), opened(directory, fingerprint=b"another")
    nobody = first_link(b"model", None, None)
    for first in (FIRST, nobody):
        for piece in chain(2, first):
            tier.write(piece, data_of(piece))
    for path in directory.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert set(tier.tokens.values()) == {32}
    assert len(tier.tokens) == 2
    other.scan()
    assert len(other) == 0
    tier.wipe([FIRST.hex()[:32]])
    assert len(files_in(directory)) == 2
    assert len(opened(directory)) == 2


def test_what_was_used_least_recently_goes_and_with_it_what_is_behind(tmp_path: Path) -> None:
    now, tier = time.time(), opened(tmp_path, limit=10 * ON_DISK)
    old, new = first_link(b"model", "old", None), first_link(b"model", "new", None)
    [*first], [*second] = chain(5, old), chain(5, new)
    with patch("time.time", lambda: now + 1000):
        for piece in first:
            tier.write(piece, data_of(piece))
    with patch("time.time", lambda: now + 2000):
        for piece in second:
            tier.write(piece, data_of(piece))
    with patch("time.time", lambda: now + 3000):
        tier.touch(first[2].link)  # and with it what is before
        [another] = chain(1, first_link(b"model", "third", None))
        tier.write(another, data_of(another))
    assert [piece.key in tier for piece in first] == [True, True, True, False, False]
    assert another.key in tier
    assert len(files_in(tmp_path)) <= 9
    # Another process finds the same, by the files' times.
    opened(tmp_path, limit=6 * ON_DISK, fingerprint=b"another")
    again = opened(tmp_path)
    assert [piece.key in again for piece in first] == [True, True, True, False, False]
    assert [piece.key in again for piece in second] == [True, False, False, False, False]


def test_a_directory_that_cant_be_is_refused_and_a_full_disk_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ParameterError, match="can't be a prefix store: Not a directory") as refused:
        opened(tmp_path / "file" / "store")
    assert str(tmp_path) not in str(refused.value)  # others than who gave it read it, too
    tier = opened(tmp_path / "store")
    error = OSError(28, "No space left on device")
    with patch("caudal.engine.tiers.disk.write_piece", side_effect=error):
        for piece in chain(5):
            assert not tier.write(piece, data_of(piece))
    [record] = caplog.records
    assert "No space left on device. All else goes on." in record.getMessage()
    assert record.getMessage().endswith(f"It is tried again in {PAUSE_SECONDS:.0f} s.")
    assert tier.failures == 1


def test_files_that_cant_be_read_now_stay_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier, pieces = opened(tmp_path / "store"), list(chain(4))
    for piece in pieces:
        tier.write(piece, data_of(piece))
    error = OSError(24, "Too many open files")
    with patch("caudal.engine.tiers.disk.read_piece", side_effect=error):
        for piece in pieces[:3]:
            assert tier.read(piece.key, SIZE) is None
    [record] = caplog.records
    assert "Too many open files. They are computed." in record.getMessage()
    assert len(opened(tmp_path / "store")) == 4
    # A directory that is something else now is one without files.
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    (tmp_path / "store").write_text("")
    assert tier.read(pieces[3].key, SIZE) is None
    assert len(caplog.records) == 1
    assert len(tier) == 0


def test_files_are_looked_at_once_and_then_only_where_there_is_something_new(
    tmp_path: Path,
) -> None:
    writer, pieces = opened(tmp_path), list(chain(3))
    for piece in pieces[:2]:
        writer.write(piece, data_of(piece))
    with patch.object(disk, "files_of", wraps=files_of) as looked:
        tier = opened(tmp_path)
        tier.scan()
        assert looked.call_count == 1
        assert len(tier) == 2
        assert tier.size == writer.size
        writer.write(pieces[2], data_of(pieces[2]))
        [space] = {path.parent for path in tmp_path.rglob("*.kv")}
        os.utime(space, (1, 1))  # its own time may be too coarse for two changes in a row
        tier.scan()
        assert looked.call_count == 2
    assert pieces[2].key in tier


def test_room_isnt_made_for_what_others_have_deleted(tmp_path: Path) -> None:
    tier, other = opened(tmp_path, limit=10 * ON_DISK), opened(tmp_path, limit=10 * ON_DISK)
    pieces = list(chain(16))
    for piece in pieces[:9]:
        tier.write(piece, data_of(piece))
    other.wipe()
    for path in files_in(tmp_path):
        path.unlink()
    with patch.object(tier, "_files", wraps=tier._files) as looked:
        for piece in pieces[9:]:
            tier.write(piece, data_of(piece))
    assert looked.call_count == 1
    assert tier.size == 7 * ON_DISK
    assert len(tier) == 7


def test_the_default_size_is_the_same_at_the_next_start(tmp_path: Path) -> None:
    """It would take nearly the whole disk after some starts, if it were of what is free then."""
    tier = opened(tmp_path)
    before = tier.limit
    free = shutil.disk_usage(tmp_path)._replace(free=2 * before)
    for piece in chain(10):
        tier.write(piece, data_of(piece))
    with patch("shutil.disk_usage", lambda path: free._replace(free=free.free - tier.size)):
        assert opened(tmp_path).limit == before


def test_a_store_takes_no_more_than_there_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was used least recently would never go where the disk is full before the limit."""
    usage = shutil.disk_usage(tmp_path)._replace(free=10 * ON_DISK)
    with patch("shutil.disk_usage", lambda path: usage):
        tier = opened(tmp_path, limit=1 << 60)
    assert tier.limit == 9 * ON_DISK
    assert f"has room for {10 * ON_DISK}: it takes {9 * ON_DISK} at most" in caplog.text
    pieces = list(chain(12))
    for piece in pieces:
        assert tier.write(piece, data_of(piece))
    assert tier.size <= 9 * ON_DISK


def test_closing_doesnt_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    tier, goes_on = opened(tmp_path), threading.Event()
    [piece] = chain(1)
    with patch.object(tier, "write", lambda *_: goes_on.wait()):
        store = PieceStore(0, tier, [SIZE])
        store.put(piece, data_of(piece))
        store.close(time.monotonic() + 0.02)
        assert not goes_on.is_set()
        goes_on.set()
        store.close(time.monotonic() + 60)
    assert not any(thread.is_alive() for thread in store._threads)
