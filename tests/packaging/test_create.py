"""Recipes become models in a store, whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caudal.errors import CaudalError, ConversionError, StoreError
from caudal.formats.gguf import GGUFFile
from caudal.formats.lora.base import AdapterBase
from caudal.formats.lora.reading import read_adapter
from caudal.formats.tensor_types import TensorType
from caudal.packaging.create import create_model
from caudal.packaging.create_progress import CreateProgress
from caudal.packaging.modelfile import parse_modelfile
from caudal.packaging.recipe import Recipe, recipe_of
from caudal.store import Store, StoredModel, oci
from caudal.store.package import PackagedMessage
from support.adapter_writer import random_factors, write_gguf_adapter, write_peft
from support.gguf_writer import write_gguf
from support.reference_model import TinyModel
from support.tiny_folder import write_tiny_folder

Q = "blk.0.attn_q.weight"
FACTORS = random_factors(Q, (64, 64))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    return Store(tmp_path / "home")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with a model, an adapter for it, and a projector."""
    directory = tmp_path / "files"
    directory.mkdir()
    TinyModel(architecture="llama", layers=1).write(directory / "m.gguf")
    write_gguf_adapter(directory / "lora.gguf", "llama", {Q: FACTORS})
    write_gguf(directory / "mmproj.gguf", {"general.architecture": "clip"}, {})
    return directory


def make(
    store: Store, text: str, files: Path, name: str = "made", quantize: str | None = None
) -> tuple[StoredModel, list[str]]:
    """A model of a Modelfile, and what was said meanwhile, each once."""
    said: list[CreateProgress] = []
    recipe = recipe_of(parse_modelfile(text), files, quantize)
    stored = create_model(store, name, recipe, said.append)
    return stored, list(dict.fromkeys(event.status for event in said))


def layer_types(store: Store, name: str) -> list[str]:
    manifest, _ = store.manifest(name)
    return [layer.media_type.rpartition(".")[2] for layer in manifest.layers]


def blobs(store: Store) -> set[str]:
    return {path.name for path in (store.home / "blobs").glob("*")}


def test_all_of_a_modelfile_is_in_the_package(store: Store, files: Path) -> None:
    text = (
        "FROM ./m.gguf\nTEMPLATE {{ .Prompt }}\nSYSTEM Be brief.\nLICENSE MIT\nLICENSE Also this\n"
        "PARAMETER temperature 1.0\nPARAMETER top_p 0.9\nPARAMETER stop <|im_end|>\n"
        "PARAMETER num_gpu 3\nMESSAGE user Hi\nMESSAGE assistant Hello\n"
        "RENDERER r\nPARSER p\nREQUIRES 0.14.0\n"
    )
    stored, said = make(store, text, files)
    package = stored.package
    assert package.template == "{{ .Prompt }}"
    assert package.system == "Be brief."
    assert package.licences == ("MIT", "Also this")
    assert package.messages == (
        PackagedMessage("user", "Hi"),
        PackagedMessage("assistant", "Hello"),
    )
    assert package.parameters == {
        "temperature": 1,
        "top_p": 0.9,
        "stop": ["<|im_end|>"],
        "num_gpu": 3,
    }
    config = stored.config
    assert config is not None
    assert (config.model_format, config.model_family) == ("gguf", "llama")
    assert (config.renderer, config.parser, config.requires) == ("r", "p", "0.14.0")
    manifest, _ = store.manifest("made")
    assert layer_types(store, "made") == [
        "model",
        "template",
        "system",
        "license",
        "license",
        "params",
        "messages",
    ]
    params = store.blob(manifest.of_type(oci.PARAMS_TYPE)[0].digest)
    assert params is not None
    # As Go writes it, so that models that Ollama makes share the blob.
    assert params.read_bytes() == (
        b'{"num_gpu":3,"stop":["\\u003c|im_end|\\u003e"],"temperature":1,"top_p":0.9}\n'
    )
    assert said[0] == "parsing GGUF"
    assert "without effect in Caudal: num_gpu" in said
    assert said[-9:] == [
        *(f"creating new layer {layer.digest}" for layer in manifest.layers),
        "writing manifest",
        "success",
    ]
    assert stored.path.read_bytes() == (files / "m.gguf").read_bytes()
    assert list((store.home / "incoming").iterdir()) == []


def test_what_a_base_has_is_kept_unless_the_recipe_says_otherwise(
    store: Store, files: Path
) -> None:
    base, _ = make(
        store,
        "FROM ./m.gguf\nADAPTER lora.gguf\nSYSTEM Old.\nTEMPLATE {{ .Prompt }}\nLICENSE MIT\n"
        "PARAMETER top_k 1\nPARAMETER stop a\nMESSAGE user old\nRENDERER r",
        files,
        "base",
    )
    text = "FROM base\nSYSTEM New.\nPARAMETER stop b\nLICENSE MIT\nLICENSE Mine\nMESSAGE user new"
    stored, said = make(store, text, files)
    assert stored.paths == base.paths
    assert stored.package.adapters == base.package.adapters
    assert (stored.package.system, stored.package.template) == ("New.", "{{ .Prompt }}")
    assert stored.package.parameters == {"top_k": 1, "stop": ["b"]}
    assert stored.package.licences == ("MIT", "Mine")
    assert [message.content for message in stored.package.messages] == ["new"]
    assert stored.config is not None
    assert stored.config.renderer == "r"
    assert f"using existing layer sha256:{base.sha256[0]}" in said
    assert "parsing GGUF" not in said
    again, _ = make(store, "FROM made\nTEMPLATE {{ .System }}", files)  # of itself
    assert (again.package.template, again.package.system) == ("{{ .System }}", "New.")
    assert [model.name for model in store.list()] == ["base", "made"]


def test_files_of_several_kinds(store: Store, files: Path) -> None:
    text = "FROM m.gguf\nFROM mmproj.gguf\nFROM lora.gguf\n"
    stored, _ = make(store, text, files)
    assert layer_types(store, "made") == ["model", "adapter", "projector"]
    assert [path.read_bytes() for path in stored.package.projectors] == [
        (files / "mmproj.gguf").read_bytes()
    ]
    added, _ = make(store, "FROM made\nFROM mmproj.gguf\nADAPTER lora.gguf", files, "added")
    assert layer_types(store, "added") == ["model", "adapter", "projector"]
    assert (added.paths, added.package) == (stored.paths, stored.package)
    assert (stored.parent, added.parent) == ("", "made:latest")


def test_an_adapter_in_a_folder_becomes_a_file(store: Store, files: Path) -> None:
    a, b = random_factors("q", (64, 64))
    module = "model.layers.0.self_attn.q_proj"
    write_peft(files / "lora", {module: (a, b)})
    with GGUFFile.open(files / "m.gguf") as model:
        base = AdapterBase.of(model)
    stored, said = make(store, "FROM m.gguf\nADAPTER ./lora", files)
    assert "converting adapter" in said
    before, after = (
        read_adapter(path, base).matrices[Q]
        for path in (files / "lora", stored.package.adapters[0])
    )
    assert np.array_equal(before.a, after.a)
    assert np.array_equal(before.b, after.b)
    assert before.scale == after.scale == 1.5
    # Changes that are scaled in different ways share no alpha.
    other = "model.layers.0.self_attn.o_proj"
    pattern = {"alpha_pattern": {other: 24}}
    write_peft(files / "two", {module: (a, b), other: (a, b)}, pattern)
    stored, _ = make(store, "FROM m.gguf\nADAPTER ./two/adapter_model.safetensors", files)
    output = read_adapter(stored.package.adapters[0], base).matrices["blk.0.attn_output.weight"]
    assert output.scale == 1.0
    assert np.array_equal(output.b, 6 * b)


def test_files_by_digest_are_those_of_the_store(store: Store, files: Path) -> None:
    weights = (files / "m.gguf").read_bytes()
    digest = store.add_blob([weights]).digest
    adapter = store.add_blob(files / "lora.gguf").digest
    recipe = Recipe(files={"x/m.gguf": digest}, adapters={"lora.gguf": adapter})
    said: list[CreateProgress] = []
    stored = create_model(store, "made", recipe, said.append)
    assert not any(event.status.startswith("copying") for event in said)
    assert stored.sha256 == (digest.removeprefix("sha256:"),)
    with pytest.raises(StoreError, match="there is no blob sha256:00"):
        create_model(store, "other", Recipe(files={"m.gguf": f"sha256:{'0' * 64}"}))


def test_split_models_stay_split(store: Store, files: Path) -> None:
    names = [f"s-{number:05d}-of-00002.gguf" for number in (1, 2)]
    tensors = TinyModel(architecture="llama", layers=1).weights()
    keys = split_keys(files / "m.gguf")
    for number, name in enumerate(names):
        part = {
            key: (TensorType.F32, values.shape, values.tobytes())
            for index, (key, values) in enumerate(tensors.items())
            if index % 2 == number
        }
        more = {"split.no": number, "split.count": 2, "split.tensors.count": len(tensors)}
        write_gguf(files / name, {**(keys if number == 0 else {}), **more}, part)
    stored, _ = make(store, f"FROM ./{names[1]}", files)
    assert stored.names == tuple(names)
    with GGUFFile.open(stored.path, stored.paths) as file:
        assert len(file.tensors) == len(tensors)
    whole, _ = make(store, "FROM made", files, "whole", quantize="f16")
    assert len(whole.paths) == 1
    with GGUFFile.open(whole.path) as file:
        assert len(file.tensors) == len(tensors)


def split_keys(path: Path) -> Mapping[str, Any]:
    with GGUFFile.open(path) as file:
        return dict(file.metadata)


def test_weights_are_quantised(store: Store, files: Path) -> None:
    stored, said = make(store, "FROM m.gguf", files, quantize="q8_0")
    assert "quantizing F32 model to Q8_0" in said
    assert stored.config is not None
    assert stored.config.file_type == "Q8_0"
    with GGUFFile.open(stored.path) as file:
        assert file.tensor(Q).type is TensorType.Q8_0
    same, said = make(store, "FROM made\nSYSTEM Hi", files, "same", quantize="Q8_0")
    assert same.paths == stored.paths
    with pytest.raises(ConversionError, match="Q8_0"):
        make(store, "FROM made", files, "other", quantize="q4_0")
    with pytest.raises(CaudalError, match="q4_X"):
        make(store, "FROM made", files, "other", quantize="q4_X")


def test_a_folder_becomes_a_file(store: Store, files: Path) -> None:
    write_tiny_folder(files / "hf")
    stored, said = make(store, "FROM ./hf", files)
    assert "converting model" in said
    assert stored.folder is None
    with GGUFFile.open(stored.path) as file:
        assert file.architecture == "llama"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM m.gguf\nTEMPLATE {{ .Prompt", "line 1"),
        ("FROM m.gguf\nTEMPLATE {% if x %}", "template error"),
        ("FROM m.gguf\nFROM n.gguf", "one model only, not of m.gguf and n.gguf"),
        ("FROM base\nFROM n.gguf", "one model only, not of base and n.gguf"),
        ("FROM m.gguf\nPARAMETER temperature -1", "temperature must be"),
        ("FROM text.txt", "no GGUF file"),
        ("FROM torn.gguf", "torn.gguf"),
        ("FROM lora.gguf", "no model among its files"),
        ("FROM m.gguf\nADAPTER n.gguf", "no adapter"),
        ("FROM m.gguf\nADAPTER wrong.gguf", "is it for another model"),
        ("FROM m.gguf\nADAPTER lora.gguf\nADAPTER wrong.gguf", "only one adapter"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_kept(
    store: Store, files: Path, text: str, words: str
) -> None:
    make(store, "FROM m.gguf", files, "base")
    before = blobs(store)
    (files / "n.gguf").write_bytes((files / "m.gguf").read_bytes())
    (files / "text.txt").write_text("FROM")
    (files / "torn.gguf").write_bytes((files / "m.gguf").read_bytes()[:-9])
    write_gguf_adapter(files / "wrong.gguf", "llama", {Q: random_factors(Q, (64, 32))})
    with pytest.raises(CaudalError, match=words):
        make(store, text, files)
    assert [model.name for model in store.list()] == ["base"]
    assert blobs(store) == before
    assert list((store.home / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe(), "neither 'from' or 'files'"),
        (Recipe(from_="./m.gguf"), "path of a file"),
        (Recipe(from_="x", parameters={"heat": 1}), "unknown parameter 'heat'"),
        (Recipe(from_="x", parameters={"top_k": "1"}), "top_k must be a whole number"),
        (Recipe(from_="x", messages=[PackagedMessage("tool", "")]), "role"),
    ],
)
def test_requests_are_checked(store: Store, recipe: Recipe, words: str) -> None:
    with pytest.raises(CaudalError, match=words):
        create_model(store, "made", recipe)


def test_a_full_disk_is_an_error_and_leaves_what_was_there(
    store: Store, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = make(store, "FROM m.gguf\nSYSTEM Old", files)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="no space left in"):
        make(store, "FROM m.gguf\nSYSTEM New", files)
    monkeypatch.undo()
    assert store.resolve("made").digest == before.digest
    assert list((store.home / "incoming").iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from caudal.packaging.create import create_model
from caudal.packaging.recipe import Recipe
from caudal.store import Store

def die(event):
    if event.status.startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

recipe = Recipe(files={"m.gguf": Path(sys.argv[2])}, system="New", quantize=sys.argv[4] or None)
create_model(Store(Path(sys.argv[1])), "made", recipe, die)
"""


@pytest.mark.parametrize(
    ("moment", "quantize"), [("copying", ""), ("writing manifest", ""), ("verifying", "q8_0")]
)
def test_a_kill_leaves_what_was_there(
    store: Store, files: Path, moment: str, quantize: str
) -> None:
    before, _ = make(store, "FROM m.gguf\nSYSTEM Old", files)
    arguments = [str(store.home), str(files / "m.gguf"), moment, quantize]
    ended = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert store.resolve("made").digest == before.digest
    assert all(found.damage is None for found in store.verify())
    store.prune(grace=0)
    assert len(blobs(store)) == 3  # weights, system prompt, configuration
    again, _ = make(store, "FROM m.gguf\nSYSTEM New", files)
    assert again.package.system == "New"


def test_what_somebody_else_deletes_meanwhile_is_made_again(store: Store, files: Path) -> None:
    make(store, "FROM m.gguf\nSYSTEM Hi", files, "other")

    def remove_other(event: CreateProgress) -> None:
        if event.status == "writing manifest" and store.list():
            store.remove("other")

    recipe = recipe_of(parse_modelfile("FROM m.gguf\nSYSTEM Hi"), files)
    stored = create_model(store, "made", recipe, remove_other)
    assert stored.package.system == "Hi"
    assert [found.damage for found in store.verify()] == [None]
