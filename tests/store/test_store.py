from __future__ import annotations

import json
from pathlib import Path

import pytest

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import Store
from caudal.store.oci import MODEL_TYPE, Layer
from support.package_index import LocalIndex
from support.wheels import build_wheel, model_bytes

DIGEST = "sha256:" + 64 * "a"


def test_a_known_model_that_is_not_here_says_how_to_get_it(store: Store) -> None:
    with pytest.raises(ModelNotFoundError, match=r"caudal pull smollm2 \(98 MB\)"):
        store.resolve("smollm2")
    with pytest.raises(ModelNotFoundError, match=r"caudal pull pypi:x==1"):
        store.resolve("pypi:x==1")
    assert not store.home.exists()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smolm2", "caudal pull smolm2. Did you mean smollm2?"),
        ("gemma3", "Did you mean gemma3:270m-base?"),
        ("example.com/me/smolm2", "caudal pull example.com/me/smolm2$"),
    ],
)
def test_who_mistypes_a_name_is_told(store: Store, name: str, hint: str) -> None:
    with pytest.raises(ModelNotFoundError, match=hint):
        store.resolve(name)
    assert store.find(name) is None
    with pytest.raises(ModelNotFoundError):
        store.remove(name)


def test_a_file_is_used_where_it_is(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(model_bytes(64))
    for ask in (store.resolve, store.pull, store.ensure):
        model = ask(str(file))
        assert (model.name, model.path, model.size) == (str(file), file, 64)
    assert not store.home.exists()
    with pytest.raises(ModelNotFoundError, match="outside the store"):
        store.remove(str(file))


def test_a_path_that_might_be_a_name_is_one_where_there_is_no_such_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models/thing"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"{}")
    monkeypatch.chdir(tmp_path)
    assert store.resolve("models/thing").folder is not None
    blob = store.add_blob([model_bytes(64)])
    store.commit("models/thing", {}, [Layer(MODEL_TYPE, blob.digest, blob.size)])
    assert store.resolve("models/thing").folder is None


def test_any_file_of_a_split_model_stands_for_all(store: Store, tmp_path: Path) -> None:
    paths = [tmp_path / f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for path in paths:
        path.write_bytes(model_bytes(10))
    model = store.resolve(str(paths[1]))
    assert model.paths == tuple(paths)
    assert (model.path, model.size) == (paths[0], 30)
    paths[2].unlink()
    with pytest.raises(ModelNotFoundError, match=r"missing: m-00003-of-00003\.gguf"):
        store.resolve(str(paths[0]))


def test_a_path_that_leads_nowhere(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no file"):
        store.resolve(str(tmp_path / "none.gguf"))
    with pytest.raises(ModelNotFoundError, match="is a directory"):
        store.resolve(str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="File name too long"):
        store.resolve(f"./{300 * 'x'}")
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"name a \.gguf file in it: m\.gguf"):
        store.resolve(str(tmp_path))


def test_removing_keeps_what_another_name_shares(index: LocalIndex, store: Store) -> None:
    build_wheel(index.directory, "x", "1.0", {"x/m.gguf": model_bytes()})
    assert store.list() == []
    path = store.pull("pypi:x").path
    store.pull("pypi:x==1.0")
    assert [model.name for model in store.list()] == ["pypi:x", "pypi:x==1.0"]
    assert store.remove("pypi:x").name == "pypi:x"
    assert path.exists()
    store.remove("pypi:x==1.0")
    assert not path.exists()
    assert store.list() == []
    with pytest.raises(ModelNotFoundError, match="not in the store"):
        store.remove("pypi:x")


def test_removing_from_a_store_that_does_not_exist(store: Store) -> None:
    for name in ("smollm2", "unheard-of"):
        with pytest.raises(ModelNotFoundError, match=f"^{name} is not in the store; .*caudal list"):
            store.remove(name)


def test_a_damaged_model_says_how_to_repair_it(index: LocalIndex, store: Store) -> None:
    build_wheel(index.directory, "x", "1.0", {"x/m.gguf": model_bytes(100)})
    path = store.pull("pypi:x").path
    path.write_bytes(b"GGUF")
    with pytest.raises(StoreError, match=r"4 bytes instead of 100\. Repair it with: caudal pull"):
        store.resolve("pypi:x")
    path.unlink()
    with pytest.raises(StoreError, match="0 bytes instead of 100"):
        store.resolve("pypi:x")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schemaVersion": 1}, "schemaVersion 2"),
        ({"mediaType": "application/vnd.oci.image.index.v1+json"}, "manifest of one image"),
        ({"layers": {}}, "`layers` must be a list"),
        ({"config": None}, "a layer must be an object"),
        ({"layers": [{"mediaType": "m", "digest": "../../x", "size": 1}]}, "a digest must be"),
        ({"config": {"mediaType": "m", "digest": DIGEST, "size": True}}, "`size`"),
        ({"annotations": {"a": 1}}, "`annotations`"),
    ],
)
def test_a_damaged_manifest_is_named(
    index: LocalIndex, store: Store, change: dict[str, object], complaint: str
) -> None:
    build_wheel(index.directory, "x", "1.0", {"x/m.gguf": model_bytes(100)})
    store.pull("pypi:x")
    manifest = store.home / "manifests/pypi.org/project/x/latest"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    for ask in (lambda: store.resolve("pypi:x"), store.list):
        with pytest.raises(StoreError, match=rf"project/x/latest is damaged .*{complaint}"):
            ask()


def test_the_home_is_configurable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAUDAL_HOME", str(tmp_path / "models"))
    assert Store().home == tmp_path / "models"
    monkeypatch.setenv("CAUDAL_HOME", "")
    assert Store().home == Path.home() / ".caudal"
