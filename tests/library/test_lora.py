"""Adapters in the library, on the native backend: mixed, loaded and unloaded as it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from caudal import LLM, SamplingParams
from caudal.errors import (
    AdapterExistsError,
    AdapterNotFoundError,
    ModelLoadError,
    ParameterError,
    UnknownAdapterError,
)
from caudal.formats.lora.adapter import Adapter
from caudal.formats.lora.base import AdapterBase
from caudal.store import Store, StoredModel
from caudal.store.package import Package
from references.checks import open_reference
from support.adapter_writer import random_adapter, write_gguf_adapter
from support.tiny_folder import write_tiny_folder

PARAMS = SamplingParams(temperature=0, max_tokens=8, logprobs=0, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": list(range(3, 23))}, {"prompt_token_ids": list(range(40, 60))}]
WHO = ["one", None, "two", "one", "two", None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def paths(folder: Path) -> dict[str, Path]:
    """Adapters of all of the model's matrices, by name; `wrong` is for another model."""
    with open_reference(folder) as file:
        base = AdapterBase.of(file)
    shapes = {n: s for n, s in base.shapes.items() if len(s) == 2 and n.startswith("blk.")}
    wrong = {"blk.0.attn_q.weight": (32, 16)}
    return {
        name: _written(folder.parent / f"{name}.gguf", random_adapter(name, changed, deviation=0.6))
        for name, changed in (("one", shapes), ("two", shapes), ("wrong", wrong))
    }


def _written(path: Path, adapter: Adapter) -> Path:
    changes = {name: (each.a, each.b) for name, each in adapter.matrices.items()}
    return write_gguf_adapter(path, "llama", changes)


@pytest.fixture
def llm(folder: Path, paths: dict[str, Path]) -> Iterator[LLM]:
    with LLM(folder, lora={"one": paths["one"]}, threads=1, kv_memory=2**20) as llm:
        yield llm


def said(llm: LLM, prompt: int, who: str | None) -> list[tuple[int, float]]:
    [result] = llm.generate(PROMPTS[prompt], PARAMS, lora=who)
    return _scores(result.outputs[0])


def _scores(output: object) -> list[tuple[int, float]]:
    logprobs = output.logprobs  # type: ignore[attr-defined]
    return [(token, each.logprob) for scored in logprobs for token, each in scored.items()]


def test_each_answers_the_same_alone_or_mixed_cold_or_warm(llm: LLM, paths: dict[str, Path]):
    llm.load_adapter("two", paths["two"])
    assert llm.adapters == {"one": str(paths["one"]), "two": str(paths["two"])}
    alone = {(p, who): said(llm, p, who) for p in range(2) for who in (None, "one", "two")}
    assert len({tuple(scores) for scores in alone.values()}) == 6
    asked = [(index % 2, who) for index, who in enumerate(WHO)]
    for salt in (None, "a", "b"):  # warm, cold, cold again
        prompts = [PROMPTS[p] | ({} if salt is None else {"cache_salt": salt}) for p, _ in asked]
        results = llm.generate(prompts, PARAMS, lora=WHO)  # type: ignore[arg-type]
        assert [_scores(result.outputs[0]) for result in results] == [alone[each] for each in asked]
        assert all((result.num_cached_tokens == 19) == (salt is None) for result in results)
    vectors = [llm.embed(PROMPTS[0], lora=who)[0].outputs.embedding for who in (None, "one", "two")]
    mixed = llm.embed([PROMPTS[0]] * 3, lora=[None, "one", "two"])
    assert [each.outputs.embedding for each in mixed] == vectors
    assert len({each[0] for each in vectors}) == 3
    llm.load_adapter("one", paths["two"], replace=True)
    assert said(llm, 0, "one") == alone[0, "two"]
    llm.unload_adapter("one")
    with pytest.raises(UnknownAdapterError, match="'one' cannot be found"):
        said(llm, 0, "one")
    assert said(llm, 0, None) == alone[0, None]


def test_a_packages_adapter_answers_whoever_names_no_other(
    folder: Path, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    options = {"lora": {"one": paths["one"], "two": paths["two"]}, "threads": 1}
    with LLM(folder, kv_memory=2**20, **options) as plain:  # type: ignore[arg-type]
        one, two = said(plain, 0, "one"), said(plain, 0, "two")
        vector = plain.embed(PROMPTS[0], lora="one")[0].outputs.embedding
    resolve = Store.resolve

    def packaged(self: Store, name: str) -> StoredModel:
        return replace(resolve(self, name), package=Package(adapters=[paths["one"]]))

    monkeypatch.setattr(Store, "resolve", packaged)
    with LLM(folder, kv_memory=2**20, lora={"two": paths["two"]}, threads=1) as llm:
        assert said(llm, 0, None) == one
        assert said(llm, 0, "two") == two
        assert llm.embed(PROMPTS[0])[0].outputs.embedding == vector
        assert list(llm.adapters) == ["two"]
        with pytest.raises(UnknownAdapterError):
            llm.unload_adapter("")
        assert said(llm, 0, None) == one


def test_what_is_wrong_is_said(llm: LLM, folder: Path, paths: dict[str, Path]):
    with pytest.raises(AdapterExistsError, match="already been loaded"):
        llm.load_adapter("one", paths["two"])
    for path in ("nowhere", "\0", "/dev/null"):
        with pytest.raises(AdapterNotFoundError, match=f"No adapter found for {path}"):
            llm.load_adapter("two", path)
    for name in ("", "two\n", "\ud800", "two" * 99):
        with pytest.raises(ParameterError, match="1 to 256 printable characters"):
            llm.load_adapter(name, paths["two"])
    with pytest.raises(ModelLoadError, match="is it for another model"):
        llm.load_adapter("two", paths["wrong"])
    with pytest.raises(ModelLoadError, match="is it for another model"):
        LLM(folder, lora={"wrong": paths["wrong"]}, threads=1, kv_memory=2**20)
    with pytest.raises(ParameterError, match="There are 2 prompts but 1 lora"):
        llm.generate(PROMPTS, PARAMS, lora=["one"])  # type: ignore[arg-type]
    with pytest.raises(UnknownAdapterError):
        llm.score("a", "b", lora="nobody")
