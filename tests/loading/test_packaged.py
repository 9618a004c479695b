"""What a package says holds when the model runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caudal.chat.conversation import Conversation, Message
from caudal.errors import ModelLoadError
from caudal.loading.load import LoadedModel, load_model, plan_model
from caudal.loading.options import LoadOptions
from caudal.service.model_service import ModelService
from caudal.service.parts import ServiceParts
from caudal.store import ProgressCallback, Store, StoredModel
from caudal.store.oci import ImageConfig
from caudal.store.package import Package, PackagedMessage
from support.reference_model import TinyModel
from support.vocabularies import bpe_metadata

OPTIONS = LoadOptions(kv_memory=2**20, threads=1, packed_size=0)
TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE
PACKAGE = Package(
    template=TEMPLATE,
    system="Be brief.",
    messages=[PackagedMessage("user", "1+1?"), PackagedMessage("assistant", "2")],
    parameters={
        "temperature": 1,
        "top_k": 7.0,
        "repeat_penalty": 1.25,
        "seed": 3,
        "stop": ["<|im_end|>", "END", "END"],
        "num_predict": 5,
        "num_ctx": 128,
        "mirostat": 2,
    },
)


class PackagedStore(Store):
    """Files, with a package around them."""

    def __init__(self, home: Path, package: Package, renderer: str = "") -> None:
        super().__init__(home)
        self.package = package
        self.renderer = renderer

    def resolve(self, name: str, progress: ProgressCallback | None = None) -> StoredModel:
        config = ImageConfig(renderer=self.renderer)
        return replace(super().resolve(name), package=self.package, config=config)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = bpe_metadata() | {
        "general.sampling.temp": 0.5,
        "general.sampling.top_p": 0.75,
    }
    model = TinyModel(architecture="llama", vocab_size=259, layers=1, metadata=metadata)
    return model.write(tmp_path_factory.mktemp("packaged") / "tiny.gguf")


def loaded(path: Path, package: Package, *, renderer: str = "", **options: Any) -> LoadedModel:
    store = PackagedStore(path.parent, package, renderer)
    return load_model(str(path), replace(OPTIONS, **options), store=store)


def test_parameters_go_before_the_makers_recommendation(path: Path):
    model = loaded(path, PACKAGE)
    model.executor.close()
    sampling = model.facts.sampling
    assert sampling.values() == {
        "temperature": 1,
        "top_k": 7,
        "top_p": 0.75,
        "repetition_penalty": 1.25,
        "seed": 3,
        "stop": ("END",),
        "max_tokens": 5,
    }
    # A control token is never text, so it ends answers as the tokenizer's own do.
    assert model.ends == {model.tokenizer.special_tokens["<|im_end|>"]}
    assert sampling.with_limit({"stop": ["x"]}, None) | {"seed": 0} == {
        **sampling.values(),
        "stop": ["x"],
        "seed": 0,
    }
    assert sampling.with_limit({}, -1)["max_tokens"] is None
    assert (model.max_model_len, model.facts.context_length) == (128, 4096)
    assert "without effect: mirostat" in str(model.facts.package)
    plain = loaded(path, PACKAGE, generation_config="none", max_model_len=256)
    plain.executor.close()
    assert plain.facts.sampling.values() == {"stop": ("END",), "max_tokens": 5}
    assert plain.max_model_len == 256


def rendered(path: Path, package: Package, said: Sequence[tuple[str, str]], **options: Any) -> str:
    messages = [Message(role=role, content=text) for role, text in said]  # type: ignore[arg-type]
    parts = ServiceParts.from_loaded(
        loaded(path, package, **options), measured=False, ready_for_chats=False
    )

    async def render() -> str:
        service = ModelService(parts)
        try:
            return await service.render(Conversation(messages=messages))
        finally:
            await service.shutdown()

    return asyncio.run(render())


def test_conversations_begin_as_the_package_has_it(path: Path):
    said = [("user", "2+2?")]
    before = "[user]1+1?[assistant]2"
    assert rendered(path, PACKAGE, said) == f"[system]Be brief.{before}[user]2+2?"
    told = [("system", "Be long."), *said]
    assert rendered(path, PACKAGE, told) == f"[system]Be long.{before}[user]2+2?"
    given = "{{ messages | length }}"
    assert rendered(path, PACKAGE, said, chat_template=given) == "4"
    no_place = replace(PACKAGE, template=NO_SYSTEM)
    assert rendered(path, no_place, said) == "[user]Be brief.\n\n1+1?[assistant]2[user]2+2?"


GO = "{{ if .System }}<{{ .System }}>{{ end }}{{ .Prompt }};{{ .Response }}|"


def test_a_packages_template_may_be_gos(path: Path) -> None:
    said = [("user", "2+2?")]
    package = replace(PACKAGE, template=GO)
    assert rendered(path, package, said) == "<Be brief.>1+1?;2|2+2?;"
    # Where Ollama renders by code of its own, the weights' template goes before the package's.
    assert rendered(path, package, said, renderer="llama") == "<Be brief.>1+1?;2|2+2?;"
    own = {"tokenizer.chat_template": TEMPLATE}
    model = TinyModel(architecture="llama", vocab_size=259, layers=1, metadata=bpe_metadata() | own)
    speaking = model.write(path.parent / "speaking.gguf")
    assert rendered(speaking, package, said) == "<Be brief.>1+1?;2|2+2?;"
    begun = "[system]Be brief.[user]1+1?[assistant]2[user]2+2?"
    assert rendered(speaking, package, said, renderer="llama") == begun


@pytest.mark.parametrize(
    ("package", "wrong"),
    [
        (Package(parameters={"temperature": "hot"}), "temperature must be a number"),
        (Package(parameters={"repeat_penalty": -1}), "repeat_penalty must be in"),
        (Package(parameters={"num_ctx": 1}), "num_ctx must be at least 2"),
        (Package(parameters={"num_ctx": True}), "num_ctx must be an integer"),
        (Package(parameters={"stop": 5}), "stop must be a list"),
        (Package(parameters={"stop": [5]}), "stop must be strings"),
        (Package(messages=[PackagedMessage("tool", "x")]), "role must be system or user"),
        (Package(adapters=[Path("a"), Path("b")]), "has 2 adapters"),
    ],
)
def test_what_cannot_be_is_refused_by_name(path: Path, package: Package, wrong: str):
    with (
        pytest.raises(ModelLoadError, match=wrong),
        plan_model(str(path), OPTIONS, store=PackagedStore(path.parent, package)),
    ):
        pass
