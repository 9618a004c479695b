from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from caudal.batches import files
from caudal.batches.batch_store import BatchStore, new_batch_id
from caudal.batches.errors import NoRoomError
from caudal.batches.files import FileStore, new_file_id


def test_a_disk_that_is_full_at_the_last_moment_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = FileStore(tmp_path / "files", 1000)
    identity = new_file_id()

    def keep() -> None:
        with store.incoming() as file:
            file.write(b"x" * 100)
            file.keep(tenant=None, filename="f", purpose="batch", identity=identity)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_atomically", full)
        for _ in range(3):
            with pytest.raises(NoRoomError):
                keep()
        assert (store.bytes, list((tmp_path / "files").iterdir())) == (0, [])
    keep()
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_atomically", full)
        with pytest.raises(NoRoomError):
            keep()  # it is written again, as of a batch that is taken up again
    assert store.bytes == 100
    assert store.path(identity, None).stat().st_size == 100


def test_what_cannot_be_read_is_told_of_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = FileStore(tmp_path / "files", 1000)
    with store.incoming() as file:
        file.write(b"x")
        kept = file.keep(tenant=None, filename="f", purpose="batch")
    content, about = (store.path(kept.id, None).with_suffix(end) for end in (".data", ".json"))
    about.write_bytes(b'{"id": "\xff')
    batch = tmp_path / "batches" / new_batch_id("batch")
    batch.mkdir(parents=True)
    (batch / "batch.json").write_bytes(b'{"id": "x"}')
    (tmp_path / "files" / "left.part").touch()
    again, batches = FileStore(tmp_path / "files", 1000), BatchStore(tmp_path / "batches")
    again.load()
    batches.load()
    assert (again.all(None), batches.all()) == ([], [])
    assert sorted((tmp_path / "files").iterdir()) == [content, about]
    assert (batch / "batch.json").exists()
    for name in (kept.id, batch.name):
        assert f"{name} can't be read, and is left as it is" in caplog.text
