"""Pulls from a registry on this machine, which is honest or isn't."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import PullProgress, PullStage, Store
from support.local_registry import CONFIG, MODEL, LocalRegistry, digest_of
from support.wheels import model_bytes

WEIGHTS = model_bytes(400_000)
LICENCE = b"MIT"
PART = 128 << 10
PULL_IN_A_PROCESS = """
import sys
from pathlib import Path
from caudal.store import Store
from caudal.store.transfer import download
download.PART_BYTES = int(sys.argv[3])
Store(Path(sys.argv[1])).pull(sys.argv[2])
"""


@pytest.fixture
def registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: None
) -> Iterator[LocalRegistry]:
    monkeypatch.setattr("caudal.store.transfer.download.PART_BYTES", PART)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    local = LocalRegistry()
    yield local
    local.close()


def add(registry: LocalRegistry, weights: bytes = WEIGHTS) -> str:
    """Put a model there; returns its name."""
    licence = ("application/vnd.ollama.image.license", LICENCE)
    registry.add("me/tiny", "latest", (MODEL, weights), licence)
    return f"{registry.host}/me/tiny"


def downloads(store: Store) -> list[str]:
    return sorted(path.name for path in (store.home / "downloads").glob("*"))


def log_in(registry: LocalRegistry, tmp_path: Path, **entry: str) -> None:
    (tmp_path / "docker").mkdir(exist_ok=True)
    config = {"auths": {registry.host: entry}}
    (tmp_path / "docker/config.json").write_text(json.dumps(config))


def test_a_pull(registry: LocalRegistry, store: Store) -> None:
    name = add(registry)
    events: list[PullProgress] = []
    pulled = store.pull(name, events.append)
    assert (pulled.name, pulled.licence) == (name, "MIT")
    assert pulled.path.read_bytes() == WEIGHTS
    assert store.manifest(name)[1] == registry.manifests["me/tiny", "latest"]
    assert downloads(store) == []
    assert sorted(registry.asked("GET", digest_of(WEIGHTS))) == [
        "bytes=0-131071",
        "bytes=131072-262143",
        "bytes=262144-393215",
        "bytes=393216-399999",
    ]
    statuses = list(dict.fromkeys(event.status for event in events))
    assert statuses[0] == "pulling manifest"
    assert f"pulling {digest_of(WEIGHTS)[7:19]}" in statuses
    assert statuses[-1] == "writing manifest"
    last = [event for event in events if event.digest == digest_of(WEIGHTS)][-1]
    assert (last.completed, last.total) == (len(WEIGHTS), len(WEIGHTS))
    registry.requests.clear()
    pulled.path.write_bytes(b"x" * len(WEIGHTS))
    assert store.pull(name).path.read_bytes() == WEIGHTS
    assert registry.asked("GET", digest_of(LICENCE)) == []


@pytest.mark.parametrize(
    "trouble",
    [
        {"statuses": [500, 503]},
        {"statuses": [429], "retry_after": "0"},
        {"drop_after": 100_000},
        {"drop_after": 100_000, "unmeasured": True},
        {"ignore_ranges": True},
    ],
)
def test_trouble_that_passes(
    registry: LocalRegistry, store: Store, trouble: dict[str, Any]
) -> None:
    name = add(registry)
    for what, value in trouble.items():
        setattr(registry, what, value)
    assert store.pull(name).path.read_bytes() == WEIGHTS


def test_a_server_that_stalls(
    registry: LocalRegistry, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caudal.store.transfer.http.STALL_SECONDS", 0.3)
    name = add(registry)
    registry.hang_after = 70_000
    reasons = []

    def go_on(event: PullProgress) -> None:
        if event.stage is PullStage.RETRYING:
            reasons.append(event.detail)
            registry.let_go()

    assert store.pull(name, go_on).path.read_bytes() == WEIGHTS
    assert "the server stopped sending" in reasons


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"corrupt": True}, "isn't what it is said to be"),
        ({"surplus": b"more", "unmeasured": True}, r"sent more than \d+ bytes"),
        ({"surplus": b"more", "ignore_ranges": True}, r"has \d+ bytes of it instead of"),
        ({"statuses": [500] * 50}, "the server answered 500"),
        ({"statuses": [503] * 50, "retry_after": "7200"}, "asks to try again in 7200 s"),
        ({"statuses": [404] * 50}, "answered 404"),
    ],
)
def test_a_lying_registry_leaves_nothing(
    registry: LocalRegistry, store: Store, lie: dict[str, Any], words: str
) -> None:
    registry.put_manifest("me/tiny", "latest", _manifest_of(registry, WEIGHTS))
    for what, value in lie.items():
        setattr(registry, what, value)
    with pytest.raises(StoreError, match=words):
        store.pull(f"{registry.host}/me/tiny")
    assert list((store.home / "blobs").iterdir()) == []
    assert store.list() == []
    assert [name for name in downloads(store) if not name.endswith(".lock")] == []


def _manifest_of(registry: LocalRegistry, content: bytes) -> bytes:
    """One whose configuration and only layer are the same blob."""
    kinds = (CONFIG, MODEL)
    config, layer = (registry.entry("me/tiny", kind, content) for kind in kinds)
    return json.dumps({"schemaVersion": 2, "config": config, "layers": [layer]}).encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": [{"mediaType": MODEL, "digest": "sha256:../../x", "size": 1}]}, "digest"),
        ({"layers": [{"mediaType": MODEL, "digest": digest_of(b""), "size": -1}]}, "size"),
        ({"layers": None}, "layers"),
        ({"padding": "x" * (16 << 20)}, "sent more than"),
        ({"mediaType": "application/vnd.oci.image.index.v1+json"}, "one image"),
    ],
)
def test_bad_manifests(
    registry: LocalRegistry, store: Store, change: dict[str, Any], words: str
) -> None:
    manifest = json.loads(_manifest_of(registry, WEIGHTS)) | change
    registry.put_manifest("me/tiny", "latest", json.dumps(manifest).encode())
    with pytest.raises(StoreError, match=words):
        store.pull(f"{registry.host}/me/tiny")


def test_what_is_no_model_is_not_fetched(registry: LocalRegistry, store: Store) -> None:
    registry.add("me/tiny", "latest", ("application/vnd.oci.image.layer.v1.tar", WEIGHTS))
    with pytest.raises(StoreError, match=r"no weights .* it has application/vnd\.oci\.image"):
        store.pull(f"{registry.host}/me/tiny")
    assert registry.asked("GET", "/blobs/") == []
    registry.add("ai/tiny", "latest", ("application/vnd.docker.ai.gguf.v3", WEIGHTS))
    assert store.pull(f"{registry.host}/ai/tiny").path.read_bytes() == WEIGHTS


def test_a_registry_without_the_model(registry: LocalRegistry, store: Store) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no me/tiny:7b"):
        store.pull(f"{registry.host}/me/tiny:7b")


def test_tokens_and_passwords(registry: LocalRegistry, store: Store, tmp_path: Path) -> None:
    name = add(registry)
    registry.bearer = True
    assert store.pull(name).path.read_bytes() == WEIGHTS  # a token for anybody
    store.remove(name)
    registry.token_for = ("anna", "s3cret")
    with pytest.raises(StoreError, match="docker login"):
        store.pull(name)
    log_in(registry, tmp_path, auth=base64.b64encode(b"anna:wrong").decode())
    with pytest.raises(StoreError, match="refuses anna"):
        store.pull(name)
    log_in(registry, tmp_path, auth=base64.b64encode(b"anna:s3cret").decode())
    assert store.pull(name).path.read_bytes() == WEIGHTS
    store.remove(name)
    registry.bearer, registry.basic = False, ("anna", "s3cret")
    log_in(registry, tmp_path, username="anna", password="s3cret")
    assert store.pull(name).path.read_bytes() == WEIGHTS


def test_credentials_stay_with_the_registry(
    registry: LocalRegistry, store: Store, tmp_path: Path
) -> None:
    name = add(registry)
    elsewhere = LocalRegistry()
    elsewhere.blobs = registry.blobs
    registry.moved_to = f"http://{elsewhere.host}"
    registry.basic = ("anna", "s3cret")
    log_in(registry, tmp_path, username="anna", password="s3cret")
    try:
        assert store.pull(name).path.read_bytes() == WEIGHTS
    finally:
        elsewhere.close()
    assert len(elsewhere.authorizations) > 3
    assert {sent for _, sent in elsewhere.authorizations} == {""}


def test_a_killed_pull_goes_on(registry: LocalRegistry, store: Store) -> None:
    name = add(registry)
    registry.hang_after = PART - 1
    process = subprocess.Popen(
        [sys.executable, "-c", PULL_IN_A_PROCESS, str(store.home), name, str(PART * 2)]
    )
    notes = store.home / "downloads" / f"{digest_of(WEIGHTS).replace(':', '-')}.partial.ranges"
    deadline = time.monotonic() + 30

    def received() -> int:
        noted = json.loads(notes.read_bytes())["there"] if notes.exists() else []
        return sum(end - start for start, end in noted)

    while received() < PART - 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = received()
    assert (there, store.list()) == (PART - 1, [])
    registry.let_go()
    registry.requests.clear()
    assert store.pull(name).path.read_bytes() == WEIGHTS
    asked = [at[6:].split("-") for at in registry.asked("GET", digest_of(WEIGHTS))]
    fetched = sum(int(last) - int(first) + 1 for first, last in asked)
    assert fetched == len(WEIGHTS) - there
    assert downloads(store) == []


def test_a_beginning_with_another_content_is_fetched_anew(
    registry: LocalRegistry, store: Store
) -> None:
    name = add(registry)
    path = store.partial(digest_of(WEIGHTS))
    path.write_bytes(b"\0" * 1000)
    notes = {"size": len(WEIGHTS), "etag": "", "there": [[0, 1000]]}
    path.with_name(path.name + ".ranges").write_text(json.dumps(notes))
    assert store.pull(name).path.read_bytes() == WEIGHTS
    assert downloads(store) == []


def test_two_pulls_share_a_download(registry: LocalRegistry, store: Store) -> None:
    name = add(registry)
    registry.hang_after = 100_000
    waits = threading.Event()
    results: list[bytes] = []

    def watch(event: PullProgress) -> None:
        if event.stage is PullStage.WAITING:
            waits.set()

    def pull() -> None:
        results.append(store.pull(name, watch).path.read_bytes())

    threads = [threading.Thread(target=pull) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert waits.wait(30)
    registry.let_go()
    for thread in threads:
        thread.join(30)
    assert results == [WEIGHTS, WEIGHTS]
    assert len(registry.asked("GET", digest_of(WEIGHTS))) <= 5


def test_whoever_is_told_can_end_it(registry: LocalRegistry, store: Store) -> None:
    name = add(registry)
    registry.hang_after = 100_000

    class EndedError(Exception):
        pass

    def end(event: PullProgress) -> None:
        if event.digest == digest_of(WEIGHTS) and event.completed:
            raise EndedError

    with pytest.raises(EndedError):
        store.pull(name, end)
    registry.let_go()
    registry.requests.clear()
    assert store.pull(name).path.read_bytes() == WEIGHTS
    assert "bytes=0-131071" not in registry.asked("GET", digest_of(WEIGHTS))


def test_a_full_disk(
    registry: LocalRegistry, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = add(registry)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=300_000))
        with pytest.raises(StoreError, match=r"pulling .* needs 0 MB .* 0 MB are free"):
            store.pull(name)
    assert registry.asked("GET", digest_of(WEIGHTS)) == []
    written = 0

    def write(file: int, content: memoryview, start: int, real: Any = os.pwrite) -> int:
        nonlocal written
        if written > 200_000:
            raise OSError(28, "No space left on device")
        count: int = real(file, content, start)
        written += count
        return count

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", write)
        with pytest.raises(StoreError, match="it goes on from where it stopped"):
            store.pull(name)
    assert store.list() == []
    registry.requests.clear()
    assert store.pull(name).path.read_bytes() == WEIGHTS
    asked = [at[6:].split("-") for at in registry.asked("GET", digest_of(WEIGHTS))]
    assert sum(int(last) - int(first) + 1 for first, last in asked) < len(WEIGHTS) - 200_000
