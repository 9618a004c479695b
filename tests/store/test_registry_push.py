"""Pushes to a registry on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import PullProgress, Store
from caudal.store.names import parse_kept_name
from caudal.store.oci import MODEL_TYPE, Layer
from caudal.store.registry.push import push_image
from support.local_registry import LocalRegistry, digest_of
from support.wheels import model_bytes

WEIGHTS = model_bytes(400_000)
PART = 128 << 10
PUSH_IN_A_PROCESS = """
import sys
from pathlib import Path
from caudal.store import Store
from caudal.store.names import parse_kept_name
from caudal.store.registry import push, upload
upload.PART_BYTES = int(sys.argv[3])
push.push_image(Store(Path(sys.argv[1])), parse_kept_name(sys.argv[2]))
"""


@pytest.fixture
def registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: None
) -> Iterator[LocalRegistry]:
    monkeypatch.setattr("caudal.store.registry.upload.PART_BYTES", PART)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    local = LocalRegistry()
    yield local
    local.close()


def keep(store: Store, name: str) -> None:
    blob = store.add_blob([WEIGHTS])
    store.commit(name, {"model_format": "gguf"}, [Layer(MODEL_TYPE, blob.digest, blob.size)])


def push(store: Store, name: str, events: list[PullProgress] | None = None) -> None:
    push_image(store, parse_kept_name(name), [].append if events is None else events.append)


def test_a_push(registry: LocalRegistry, store: Store, tmp_path: Path) -> None:
    name = f"{registry.host}/me/tiny:q8"
    keep(store, name)
    registry.bearer = True
    events: list[PullProgress] = []
    push(store, name, events)
    assert registry.blobs[digest_of(WEIGHTS)] == WEIGHTS
    assert registry.manifests["me/tiny", "q8"] == store.manifest(name)[1]
    assert "0-131071" in registry.asked("PATCH", "uploads")
    statuses = list(dict.fromkeys(event.status for event in events))
    assert statuses[0] == f"pushing {digest_of(WEIGHTS)[7:19]}"
    assert statuses[-1] == "pushing manifest"
    assert list((store.home / "downloads").iterdir()) == []
    registry.requests.clear()
    push(store, name)
    assert registry.asked("POST", "") == []
    other = Store(tmp_path / "other")
    assert other.pull(name).path.read_bytes() == WEIGHTS


def test_what_another_repository_has_is_mounted(registry: LocalRegistry, store: Store) -> None:
    keep(store, f"{registry.host}/me/first")
    push(store, f"{registry.host}/me/first")
    store.copy(f"{registry.host}/me/first", f"{registry.host}/you/second")
    registry.requests.clear()
    push(store, f"{registry.host}/you/second")
    assert registry.asked("PATCH", "") == []
    assert digest_of(WEIGHTS) in registry.repositories["you/second"]


@pytest.mark.parametrize("trouble", [{"statuses": [500, 502]}, {"drop_after": 200_000}])
def test_trouble_that_passes(
    registry: LocalRegistry, store: Store, trouble: dict[str, Any]
) -> None:
    name = f"{registry.host}/me/tiny"
    keep(store, name)
    for what, value in trouble.items():
        setattr(registry, what, value)
    push(store, name)
    assert registry.blobs[digest_of(WEIGHTS)] == WEIGHTS


def test_a_killed_push_goes_on(registry: LocalRegistry, store: Store) -> None:
    name = f"{registry.host}/me/tiny"
    keep(store, name)
    registry.hang_after = PART + 10
    process = subprocess.Popen(
        [sys.executable, "-c", PUSH_IN_A_PROCESS, str(store.home), name, str(PART)]
    )
    assert registry.hanging.wait(30)
    deadline = time.monotonic() + 30
    while not list((store.home / "downloads").glob("*.upload")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    registry.let_go()
    registry.requests.clear()
    push(store, name)
    assert registry.blobs[digest_of(WEIGHTS)] == WEIGHTS
    begins = [int(at.split("-")[0]) for at in registry.asked("PATCH", "") if at]
    assert min(begins) > PART


def test_what_cannot_be_pushed(registry: LocalRegistry, store: Store) -> None:
    name = f"{registry.host}/me/tiny"
    with pytest.raises(ModelNotFoundError):
        push(store, name)
    keep(store, name)
    registry.basic = ("anna", "s3cret")
    with pytest.raises(StoreError, match="docker login"):
        push(store, name)
    assert json.loads(store.manifest(name)[1])["layers"]
    assert registry.manifests == {}
    blob = store.blob(digest_of(WEIGHTS))
    assert blob is not None
    blob.unlink()
    with pytest.raises(StoreError, match="caudal verify"):
        push(store, name)
