"""Debian's `docker-registry`: push, pull, and both killed and gone on with."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from caudal.errors import StoreError
from caudal.store import PullProgress, PullStage, Store
from caudal.store.names import parse_kept_name
from caudal.store.oci import MODEL_TYPE, Layer
from caudal.store.registry.push import push_image
from caudal.store.registry.upload import Upload
from support.docker_registry import PASSWORD, USER, docker_registry

SIZE = 400 << 20
TAKE = """
import sys
from pathlib import Path
from caudal.store import Store
from caudal.store.names import parse_kept_name
from caudal.store.registry.push import push_image
store, name = Store(Path(sys.argv[1])), sys.argv[2]
if sys.argv[3] == "push":
    push_image(store, parse_kept_name(name))
else:
    store.pull(name)
"""


def keep(store: Store, name: str, size: int) -> str:
    """Make a model of so many bytes; returns their hash in hex."""
    generator = random.Random(size)
    blob = store.add_blob(generator.randbytes(1 << 20) for _ in range(size >> 20))
    store.commit(name, {"model_format": "gguf"}, [Layer(MODEL_TYPE, blob.digest, blob.size)])
    return blob.digest.removeprefix("sha256:")


def sha256_of(store: Store, name: str) -> str:
    with store.resolve(name).path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def kill_after(seconds: float, store: Store, name: str, action: str) -> bool:
    """Start a pull or push, and kill it once it has gone on for so long.

    Returns:
        Whether it was still at it.
    """
    notes = "*.ranges" if action == "pull" else "*.upload"
    before = {path: path.read_bytes() for path in (store.home / "downloads").glob(notes)}
    process = subprocess.Popen([sys.executable, "-c", TAKE, str(store.home), name, action])
    while process.poll() is None:
        now = {path: path.read_bytes() for path in (store.home / "downloads").glob(notes)}
        if now != before:
            break
        time.sleep(0.01)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def test_with_name_and_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    store, other = Store(tmp_path / "one"), Store(tmp_path / "two")
    with docker_registry(tmp_path, locked=True) as host:
        name = f"{host}/me/tiny:q8"
        sha256 = keep(store, name, 5 << 20)
        with pytest.raises(StoreError, match="docker login"):
            push_image(store, parse_kept_name(name))
        login = {host: {"username": USER, "password": PASSWORD}}
        (tmp_path / "config.json").write_text(json.dumps({"auths": login}))
        push_image(store, parse_kept_name(name))
        other.pull(name)
        assert sha256_of(other, name) == sha256
        assert other.manifest(name)[1] == store.manifest(name)[1]
        store.copy(name, f"{host}/you/tiny")
        sent: list[PullProgress] = []
        push_image(store, parse_kept_name(f"{host}/you/tiny"), sent.append)
        assert other.pull(f"{host}/you/tiny").digest == other.manifest(name)[0].digest


def test_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    store, other = Store(tmp_path / "one"), Store(tmp_path / "two")
    moments = random.Random(1)
    with docker_registry(tmp_path, locked=False) as host:
        name = f"{host}/me/large"
        sha256 = keep(store, name, SIZE)
        assert any(kill_after(moments.uniform(0, 0.5), store, name, "push") for _ in range(4))
        push_image(store, parse_kept_name(name))
        there = 0
        for _ in range(4):
            killed = kill_after(moments.uniform(0, 0.03), other, name, "pull")
            notes = list((other.home / "downloads").glob("*.ranges"))
            if not killed:
                break  # on a quick machine, all of it was there
            if not notes:
                continue  # it was too early, or nothing but the hash was left to check
            before = there
            there = sum(end - start for start, end in json.loads(notes[0].read_bytes())["there"])
            assert there >= before
        for path in (other.home / "blobs").glob("*"):
            with path.open("rb") as file:
                assert path.name == f"sha256-{hashlib.file_digest(file, 'sha256').hexdigest()}"
        events: list[PullProgress] = []
        other.pull(name, events.append)
        fetched = [
            event.completed
            for event in events
            if event.digest == f"sha256:{sha256}" and event.stage is PullStage.DOWNLOADING
        ]
        assert min(fetched, default=SIZE) >= there
        assert sha256_of(other, name) == sha256
        assert list((other.home / "downloads").iterdir()) == []


def test_a_push_goes_on_between_two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr("caudal.store.registry.upload.PART_BYTES", 1 << 20)
    store = Store(tmp_path / "one")

    class EndedError(Exception):
        pass

    def ends(name: str) -> Callable[..., Awaitable[None]]:
        """What ends at this step, if it is of the model: its configuration is sent meanwhile."""
        step = getattr(Upload, name)

        async def end(upload: Upload, *rest: Any) -> None:
            if upload._layer.media_type == MODEL_TYPE:
                raise EndedError
            await step(upload, *rest)

        return end

    with docker_registry(tmp_path, locked=False) as host:
        name = f"{host}/me/parts"
        keep(store, name, 5 << 20)
        with monkeypatch.context() as patch:
            patch.setattr(Upload, "_finish", ends("_finish"))
            with pytest.raises(EndedError):
                push_image(store, parse_kept_name(name))
        monkeypatch.setattr(Upload, "_begin", ends("_begin"))
        push_image(store, parse_kept_name(name))
        assert Store(tmp_path / "two").pull(name).digest == store.resolve(name).digest
