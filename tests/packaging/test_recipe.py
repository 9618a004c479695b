"""What a Modelfile asks for: files, types of parameters, and errors with lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from caudal.loading import packaged
from caudal.packaging.modelfile import ModelfileError, parse_modelfile
from caudal.packaging.parameters import (
    PARAMETERS,
    parameter_table,
    read_parameters,
    without_effect,
)
from caudal.packaging.recipe import Recipe, recipe_of
from caudal.store.package import PackagedMessage


def recipe(text: str, directory: Path, quantize: str | None = None) -> Recipe:
    return recipe_of(parse_modelfile(text), directory, quantize)


def test_all_that_a_recipe_has(tmp_path: Path) -> None:
    text = (
        "FROM test\nPARAMETER temperature 0.5\nPARAMETER top_k 1\nPARAMETER top_k 2\n"
        "PARAMETER stop a\nPARAMETER stop b\nPARAMETER use_mmap T\nPARAMETER mirostat 2\n"
        "SYSTEM first\nSYSTEM You are a bot.\nLICENSE license1\nLICENSE license2\n"
        "MESSAGE user Hello there!\nMESSAGE assistant Hi! How are you?\n"
        "TEMPLATE some template\nRENDERER r\nPARSER p\nREQUIRES v0.14.0\n"
    )
    assert recipe(text, tmp_path, "q4_K_M") == Recipe(
        from_="test",
        system="You are a bot.",
        template="some template",
        licences=["license1", "license2"],
        parameters={
            "temperature": 0.5,
            "top_k": 2,
            "stop": ["a", "b"],
            "use_mmap": True,
            "mirostat": 2,
        },
        messages=[
            PackagedMessage("user", "Hello there!"),
            PackagedMessage("assistant", "Hi! How are you?"),
        ],
        quantize="q4_K_M",
        renderer="r",
        parser="p",
        requires="0.14.0",
    )


def test_paths_start_where_the_modelfile_lies(tmp_path: Path) -> None:
    for name in ("m.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "other/m.gguf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for folder, name in (("hf", "config.json"), ("lora", "adapter_config.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    (tmp_path / "lora" / "adapter_model.safetensors").touch()
    (tmp_path / "hf" / "model.safetensors").touch()
    found = recipe(f"FROM m.gguf\nFROM {tmp_path}/other/m.gguf\nADAPTER ./lora", tmp_path)
    assert found.from_ is None
    assert found.files == {"m.gguf": tmp_path / "m.gguf", "other/m.gguf": tmp_path / "other/m.gguf"}
    assert list(found.adapters) == ["adapter_config.json", "adapter_model.safetensors"]
    split = recipe("FROM ./s-00002-of-00002.gguf", tmp_path)
    assert list(split.files) == ["s-00001-of-00002.gguf", "s-00002-of-00002.gguf"]
    for folder in ("hf", "./hf", "hf/model.safetensors"):
        assert sorted(recipe(f"FROM {folder}", tmp_path).files) == [
            "config.json",
            "model.safetensors",
        ]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (
            "FROM a\nPARAMETER heat 1",
            2,
            "unknown parameter 'heat'; the names are draft_num_predict",
        ),
        ("FROM a\nPARAMETER top_k 1.5", 2, 'top_k must be a whole number, not "1.5"'),
        ("FROM a\nPARAMETER top_k 9223372036854775808", 2, "must be a whole number"),
        ("FROM a\n\nPARAMETER temperature warm", 3, "must be a number"),
        ("FROM a\nPARAMETER temperature nan", 2, "must be a number"),
        ("FROM a\nPARAMETER use_mmap yes", 2, "must be true or false"),
        ("FROM a\nREQUIRES new", 2, "needs a version"),
        ("FROM ./a.gguf", 1, "there is no file"),
        ("FROM a\nADAPTER b", 2, "there is no file"),
        ("FROM .", 1, "neither config.json with a model"),
        ("FROM a\nDRAFT b", 2, "draft models"),
        ("FROM ", 1, "FROM lacks"),
        (f"FROM ./{'x' * 5000}", 1, "there is no file"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(ModelfileError) as caught:
        recipe(text, tmp_path)
    assert caught.value.line == line
    assert words in str(caught.value)


def test_parameters_are_shown_in_columns() -> None:
    parameters = read_parameters(
        [
            ("num_ctx", "1048576"),
            ("top_p", "0.90"),
            ("min_p", "1.0"),
            ("stop", "</s>"),
            ("stop", "\n"),
        ]
    )
    assert parameter_table(parameters).splitlines() == [
        "num_ctx                        1048576",
        "top_p                          0.9",
        "min_p                          1",
        'stop                           "</s>"',
        'stop                           "\\n"',
    ]
    assert without_effect(["num_gpu", "top_p", "mirostat"]) == ["num_gpu", "mirostat"]


def test_what_has_an_effect_is_what_runs_models_goes_by() -> None:
    assert set(without_effect(PARAMETERS)) == set(packaged.without_effect(PARAMETERS))
