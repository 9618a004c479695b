"""Models made of blobs: stored, copied, removed, pruned, and what of it a kill can leave."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pytest

from caudal.errors import ModelNameError, ModelNotFoundError, StoreError
from caudal.store import ModelOrigin, PackagedMessage, Store, incoming, oci
from caudal.store.oci import ImageConfig, ImageManifest, Layer
from support.model_directories import write_old_model
from support.wheels import model_bytes

MODEL = model_bytes(1000)


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def add(store: Store, content: bytes, kind: str = oci.MODEL_TYPE, title: str = "") -> Layer:
    blob = store.add_blob([content[:7], content[7:]])
    return Layer(kind, blob.digest, blob.size, {oci.TITLE: title} if title else {})


def commit(store: Store, name: str, content: bytes = MODEL) -> None:
    store.commit(name, {"model_format": "gguf"}, [add(store, content)])


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if not path.is_dir()}


def blobs_of_all(store: Store) -> set[str]:
    manifests = [store.manifest(model.full_name)[0] for model in store.list()]
    return {layer.digest.replace(":", "-") for each in manifests for layer in each.blobs}


def test_a_model_of_layers_is_what_its_layers_say(store: Store) -> None:
    layers = [
        add(store, MODEL),
        add(store, b"{{ .Prompt }}", oci.TEMPLATE_TYPE),
        add(store, b"Be brief.", oci.SYSTEM_TYPE),
        add(store, b'{"stop":["x"],"num_ctx":10,"seed":null}', oci.PARAMS_TYPE),
        add(store, b"MIT\n\nPermission ...", oci.LICENSE_TYPE),
        add(store, b'[{"role":"user","content":"Hi"}]', oci.MESSAGES_TYPE),
        add(store, b"GGUF lora", oci.ADAPTER_TYPE),
    ]
    config = ImageConfig(model_format="gguf", model_type="1B", others={"x": [1]})
    made = store.commit("Mine/Thing:V1", config.to_mapping(), layers)
    assert (made.name, made.full_name) == ("Mine/Thing:V1", "registry.ollama.ai/Mine/Thing:V1")
    assert (made.path.read_bytes(), made.size, made.licence) == (MODEL, 1000, "MIT")
    package = made.package
    assert (package.template, package.system) == ("{{ .Prompt }}", "Be brief.")
    assert package.parameters == {"stop": ["x"], "num_ctx": 10}
    assert package.messages == (PackagedMessage("user", "Hi"),)
    assert [path.read_bytes() for path in package.adapters] == [b"GGUF lora"]
    assert made.config is not None
    assert (made.config.model_type, made.config.others["x"]) == ("1B", [1])
    assert made.origin is ModelOrigin.STORE
    for name in ("mine/thing:v1", "registry.ollama.ai/MINE/thing:V1"):
        assert store.resolve(name) == made
    manifest, raw = store.manifest("mine/thing:v1")
    assert made.digest == hashlib.sha256(raw).hexdigest() == manifest.digest
    assert ImageManifest.from_bytes(raw) == manifest
    # Another of the name takes its place, in whatever case.
    assert store.commit("mine/thing:v1", {}, layers[:1]).name == "Mine/Thing:V1"
    assert names_in(store.home / "blobs") == blobs_of_all(store)


def test_layers_that_make_no_sense_are_refused(store: Store) -> None:
    for kind, content in ((oci.PARAMS_TYPE, b"[1]"), (oci.MESSAGES_TYPE, b"{"), ("x", b"y")):
        weights = [] if kind == "x" else [add(store, MODEL)]
        with pytest.raises(StoreError, match=r"is damaged: its |has no weights"):
            store.commit("bad", {}, [*weights, add(store, content, kind)])
    with pytest.raises(StoreError, match=r"a file of it is called '\.\./m'"):
        store.commit("bad", {}, [add(store, MODEL, title="../m")])
    assert store.list() == []
    with pytest.raises(ModelNameError, match="is a path"):
        store.commit("./bad", {}, [])
    with pytest.raises(StoreError, match="not a model that can be kept: it is no JSON"):
        store.commit_manifest("bad", b"{")


def test_a_blob_is_what_it_has_to_be_or_not_there(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(MODEL)
    blob = store.add_blob(file)
    assert (blob.digest, blob.size, file.exists()) == (digest_of(MODEL), 1000, True)
    path = store.blob(blob.digest)
    assert path == store.home / "blobs" / blob.digest.replace(":", "-")
    assert path.read_bytes() == MODEL
    assert store.blob(digest_of(b"other")) is None
    partial = store.partial(digest_of(b"new"))
    partial.write_bytes(b"other")
    for source, move in (([b"other"], False), (partial, True)):
        with pytest.raises(StoreError, match=r"was discarded: expected sha256 .*, got "):
            store.add_blob(source, digest=digest_of(b"new"), move=move)
    assert not partial.exists()
    partial.write_bytes(b"new")
    store.add_blob(partial, digest=digest_of(b"new"), move=True)
    assert not partial.exists()

    def failing() -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="no space left"):
        store.add_blob(failing())
    assert names_in(store.home / "incoming") == set()
    assert len(names_in(store.home / "blobs")) == 2
    layer = Layer(oci.MODEL_TYPE, digest_of(b"other"), 5)
    with pytest.raises(StoreError, match=r"sha256:.* is not here"):
        store.commit("a", {}, [layer])
    with pytest.raises(StoreError, match="has 3 bytes instead of 5"):
        store.commit("a", {}, [Layer(oci.MODEL_TYPE, digest_of(b"new"), 5)])
    with pytest.raises(StoreError, match="a digest must be sha256:"):
        store.blob("sha256:../../x")
    assert store.list() == []


def test_a_copy_shares_everything_and_outlives_what_it_was_made_of(store: Store) -> None:
    commit(store, "a")
    before = names_in(store.home / "blobs")
    copied = store.copy("a", "b:x")
    assert copied.name == "b:x"
    assert names_in(store.home / "blobs") == before
    store.remove("A:latest")
    assert store.resolve("b:x").path.read_bytes() == MODEL
    store.remove("b:x")
    assert names_in(store.home / "blobs") == set()
    assert list((store.home / "manifests").iterdir()) == []
    with pytest.raises(ModelNotFoundError, match="b:x is not in the store"):
        store.copy("b:x", "c")


def test_pruning_spares_models_and_what_is_young(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(store, "a")
    unused = store.add_blob([b"unused"])
    store.partial(unused.digest).write_bytes(b"unu")
    assert store.prune() == []
    monkeypatch.setattr(incoming, "_YOUNG_SECONDS", -1)
    (store.home / "incoming/killed").write_bytes(b"ki")
    (store.home / "checked").mkdir(exist_ok=True)
    (store.home / "checked/.x.json.7.new").write_bytes(b"ki")
    assert {(file.what, file.size) for file in store.prune(grace=-1)} == {
        ("unused blob", 6),
        ("partial download", 3),
    }
    assert names_in(store.home / "incoming") == set()
    assert list((store.home / "checked").glob("*.new")) == []
    assert names_in(store.home / "blobs") == blobs_of_all(store)
    assert store.resolve("a").path.read_bytes() == MODEL
    (store.home / "manifests/registry.ollama.ai/library/a/latest").write_text("{")
    with pytest.raises(StoreError, match="latest is damaged"):
        store.prune(grace=-1)


def test_a_model_that_is_made_anew_meanwhile_is_never_taken_for_damaged(store: Store) -> None:
    contents = [model_bytes(1000, seed=seed) for seed in range(2)]
    commit(store, "a", contents[0])
    done = threading.Event()

    def make() -> None:
        for number in range(40):
            commit(store, "a", contents[number % 2])
        done.set()

    with ThreadPoolExecutor() as pool:
        making = pool.submit(make)
        while not done.is_set():
            assert store.resolve("a").size == 1000
        making.result()


def run_and_kill(work: Callable[[], None], moment: Callable[[], bool], pause: float) -> None:
    """Have two processes do something, and kill them soon after a certain moment."""
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=work) for _ in range(2)]
    for process in running:
        process.start()
    deadline = time.monotonic() + 30
    while not moment() and time.monotonic() < deadline:
        time.sleep(0.0005)
    time.sleep(pause)
    for process in running:
        process.kill()
        process.join()


def change_at_random(home: Path, count: Synchronized[int]) -> None:
    """Store, copy, remove and prune models until somebody ends it."""
    store = Store(home)
    choice = random.Random(os.getpid())
    while True:
        name, other = choice.choices("abcd", k=2)
        try:
            match choice.randrange(5):
                case 0 | 1:
                    commit(store, name, model_bytes(200_000, seed=choice.randrange(6)))
                case 2:
                    store.copy(name, other)
                case 3:
                    store.remove(name)
                case 4:
                    store.prune(grace=-1)
        except (ModelNotFoundError, StoreError):
            pass  # what was needed is gone meanwhile
        with count.get_lock():
            count.value += 1


def test_processes_killed_at_any_moment_leave_whole_models_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "_YOUNG_SECONDS", -1)
    seen = set()
    chance = random.Random(0)
    for _ in range(12):
        count: Synchronized[int] = multiprocessing.Value("i")
        enough = chance.randrange(1, 15)
        run_and_kill(
            lambda count=count: change_at_random(store.home, count),
            lambda count=count, enough=enough: count.value >= enough,
            pause=chance.uniform(0, 0.01),
        )
        found = list(store.verify())
        assert [each for each in found if each.damage is not None] == []
        seen.update(each.name for each in found)
        for path in (store.home / "manifests").rglob("*"):
            assert path.is_dir() or ImageManifest.from_bytes(path.read_bytes()).layers
    assert seen
    store.prune(grace=-1)
    assert names_in(store.home / "blobs") == blobs_of_all(store)
    assert names_in(store.home / "incoming") == set()


OLD = {
    "smollm2": {"m.gguf": MODEL},
    "pypi:x==1.0/m.gguf": {"m.gguf": MODEL},
    "pypi:split": {f"s-0000{n}-of-00002.gguf": model_bytes(3000, seed=n) for n in (1, 2)},
    "minilm": {
        "model.safetensors": b"weights",
        "config.json": b"{}",
        "1_Pooling/config.json": b"{}",
        "tokenizer.json": b'{"model": {}}',
    },
}


def test_an_old_store_moves_over_though_processes_are_killed_meanwhile(tmp_path: Path) -> None:
    chance = random.Random(0)
    for number in range(8):
        home = tmp_path / str(number)
        for name, files in OLD.items():
            write_old_model(home, name, files)
        inodes = {path.stat().st_ino for path in (home / "blobs").iterdir()}
        store = Store(home)
        run_and_kill(
            lambda home=home: Store(home).list(),
            lambda home=home, left=number % 5: len([*home.glob("manifests/*.json")]) <= left,
            pause=chance.uniform(0, 0.005),
        )
        models = {model.name: model for model in store.list()}
        assert models.keys() == OLD.keys()
        for name, files in OLD.items():
            model = store.resolve(name)
            read = zip(model.names, (path.read_bytes() for path in model.paths), strict=True)
            assert dict(read) == files
            assert (model.licence, model.description, model.sources) == ("MIT", "Old", ("p==1",))
            assert model.modified.isoformat() == "2026-01-02T03:04:05+00:00"
        assert (models["minilm"].folder is None) == (models["smollm2"].folder is not None)
        assert inodes <= {path.stat().st_ino for path in (home / "blobs").iterdir()}
        assert names_in(home / "blobs") == blobs_of_all(store)
        assert list((home / "manifests").glob("*.json")) == []


def test_an_old_store_that_cannot_be_written_to_is_read_as_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, files in OLD.items():
        write_old_model(store.home, name, files)
    before = names_in(store.home)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", read_only)
        assert {model.name for model in store.list()} == OLD.keys()
        for name, files in OLD.items():
            assert [path.read_bytes() for path in store.resolve(name).paths] == [*files.values()]
        assert all(found.damage is None for found in store.verify())
        with pytest.raises(StoreError, match="cannot write to the store"):
            store.remove("smollm2")
        assert names_in(store.home) == before
    store.remove("smollm2")
    assert {model.name for model in store.list()} == OLD.keys() - {"smollm2"}
