"""A directory of Ollama's is read where it is, and nothing in it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import ModelOrigin, Store
from support.model_directories import write_ollama_model
from support.wheels import model_bytes

MODEL = model_bytes(2000)


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(directory))
    layers = {"model": MODEL, "system": b"Be brief.", "params": b'{"temperature":1}'}
    write_ollama_model(directory, "registry.ollama.ai/library/smollm2/1.7b", layers)
    write_ollama_model(directory, "hf.co/Org/Repo-GGUF/Q8_0", {"model": MODEL})
    elsewhere = {"remote_host": "https://ollama.com:443", "remote_model": "x"}
    write_ollama_model(directory, "registry.ollama.ai/library/x/cloud", {}, elsewhere)
    broken = directory / "manifests/registry.ollama.ai/library/broken/latest"
    broken.parent.mkdir()
    broken.write_text("{")
    return directory


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_what_ollama_has_is_used_in_place(store: Store, ollama: Path) -> None:
    before = snapshot(ollama)
    assert [model.name for model in store.list()] == ["hf.co/Org/Repo-GGUF:Q8_0", "smollm2:1.7b"]
    model = store.resolve("smollm2:1.7B")
    assert (model.origin, model.path.parent) == (ModelOrigin.OLLAMA, ollama / "blobs")
    assert (model.package.system, model.package.parameters) == ("Be brief.", {"temperature": 1})
    assert model.config is not None
    assert model.config.model_type == "1B"
    for name in ("hf.co/org/repo-gguf:q8_0", "hf:Org/Repo-GGUF:Q8_0"):
        assert store.resolve(name).path == model.path
    # A name of what Caudal knows doesn't stand for what Ollama has under another.
    with pytest.raises(ModelNotFoundError, match="caudal pull smollm2"):
        store.resolve("smollm2")
    with pytest.raises(StoreError, match=r"^x:cloud has no weights that Caudal can read"):
        store.resolve("x:cloud")
    verified = list(store.verify())
    assert len(verified) == 4
    assert [each.name for each in verified if each.damage is not None] == ["broken"]
    with pytest.raises(StoreError, match=r"is Ollama's \(.*/ollama\).*ollama rm smollm2:1\.7b"):
        store.remove("smollm2:1.7b")
    assert snapshot(ollama) == before
    model.path.write_bytes(MODEL[:-1] + b"!")
    with pytest.raises(StoreError, match=r"damaged: .*Repair it with: ollama pull smollm2:1\.7b"):
        store.resolve("smollm2:1.7b")


def test_what_else_is_in_it_keeps_nobody_from_what_is_whole(store: Store, ollama: Path) -> None:
    library = "registry.ollama.ai/library"
    whole = [model.name for model in store.list()]
    for kind in ("pipe", "endless"):
        layers = {"model": MODEL, "template": f"a template, {kind}".encode()}
        write_ollama_model(ollama, f"{library}/{kind}/latest", layers, {"model_type": kind})
        for blob in list((ollama / "blobs").iterdir()):
            if blob.is_file() and kind.encode() in blob.read_bytes():
                blob.unlink()
                os.mkfifo(blob) if kind == "pipe" else blob.symlink_to("/dev/zero")
    number = {"model": MODEL, "params": b'{"num_ctx": 1e999}'}
    write_ollama_model(ollama, f"{library}/number/latest", number)
    for name in ("no-file", "no-link", "a-directory"):
        (ollama / "manifests" / library / name).mkdir()
    os.mkfifo(ollama / "manifests" / library / "no-file/latest")
    (ollama / "manifests" / library / "no-link/latest").symlink_to("latest")
    (ollama / "manifests" / library / "a-directory/latest").mkdir()
    listed = {model.name: model.config for model in store.list()}
    assert set(listed) == {*whole, "pipe", "endless", "number"}
    assert listed["pipe"] is listed["endless"] is None
    for name in ("pipe", "endless", "number", "no-file", "no-link", "a-directory"):
        with pytest.raises((StoreError, ModelNotFoundError)):
            store.resolve(name)


@pytest.mark.parametrize("same_file_system", [True, False])
def test_a_copy_of_what_ollama_has_takes_no_space(
    store: Store, ollama: Path, monkeypatch: pytest.MonkeyPatch, same_file_system: bool
) -> None:
    before = snapshot(ollama)

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    if not same_file_system:
        monkeypatch.setattr(os, "link", refuse)
    copied = store.copy("smollm2:1.7b", "mine")
    assert (copied.origin, copied.path.parent) == (ModelOrigin.STORE, store.home / "blobs")
    assert copied.path.samefile(store.resolve("smollm2:1.7b").path)
    assert copied.path.is_symlink() != same_file_system
    # What is in our store wins.
    store.copy("smollm2:1.7b", "smollm2:1.7b")
    assert store.resolve("smollm2:1.7b").origin is ModelOrigin.STORE
    assert len(store.list()) == 3
    assert store.remove("smollm2:1.7b").origin is ModelOrigin.STORE
    store.remove("mine")
    assert list((store.home / "blobs").iterdir()) == []
    assert store.resolve("smollm2:1.7b").origin is ModelOrigin.OLLAMA
    assert snapshot(ollama) == before


def test_a_store_may_be_ollamas_directory(ollama: Path) -> None:
    store = Store(ollama)
    [model, _] = [store.resolve(name) for name in ("smollm2:1.7b", "hf.co/Org/Repo-GGUF:Q8_0")]
    assert model.origin is ModelOrigin.STORE
    store.remove("smollm2:1.7b")
    assert store.resolve("hf.co/Org/Repo-GGUF:Q8_0").path.read_bytes() == MODEL


def test_a_directory_that_may_not_be_read_is_as_if_it_was_not_there(
    store: Store, ollama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert store.list() == []
