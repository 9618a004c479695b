"""`create`, `show` with its parts, and `cp` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from caudal.cli.app import app
from support.reference_model import TinyModel


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run: a directory with a model."""
    monkeypatch.setenv("CAUDAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    TinyModel(architecture="llama", layers=1).write(tmp_path / "m.gguf")
    return tmp_path


def caudal(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=text)


def test_create_show_copy(directory: Path) -> None:
    (directory / "Modelfile").write_text(
        "FROM ./m.gguf\nSYSTEM Be brief.\nPARAMETER top_k 3\nLICENSE MIT\nTEMPLATE {{ .Prompt }}\n"
    )
    made = caudal("create", "made")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.startswith("made is ready (")
    assert made.stderr.splitlines()[0] == "gathering model components"
    assert made.stderr.splitlines()[-1] == "success"
    derived = caudal("create", "derived", "-f", "-", text="FROM made\nSYSTEM Be loud.\n")
    assert derived.exit_code == 0, derived.stderr
    assert caudal("show", "derived", "--system").stdout == "Be loud.\n"
    assert caudal("show", "derived", "--template").stdout == "{{ .Prompt }}\n"
    assert caudal("show", "derived", "--license").stdout == "MIT\n"
    assert caudal("show", "derived", "--parameters").stdout.split() == ["top_k", "3"]
    assert "\nSYSTEM Be loud.\n" in caudal("show", "derived", "--modelfile").stdout
    shown = caudal("show", "derived").stdout
    for words in ("quantisation", "capabilities", "Be loud.", "top_k"):
        assert words in shown
    assert json.loads(caudal("show", "derived", "--json").stdout)["package"]["system"] == "Be loud."
    both = caudal("show", "derived", "--system", "--template")
    assert both.exit_code == 2
    assert "one of" in both.stderr
    copied = caudal("cp", "derived", "copy:v2")
    assert (copied.exit_code, copied.stdout) == (0, "derived is copy:v2, too\n")
    assert caudal("show", "copy:v2", "--system").stdout == "Be loud.\n"


def test_without_a_modelfile_it_is_the_model_of_this_directory() -> None:
    assert caudal("create", "plain").exit_code == 0
    assert "FROM" in caudal("show", "plain", "--modelfile").stdout


def test_errors_are_one_line(directory: Path) -> None:
    for arguments, text, words in (
        (["create", "x", "-f", "none"], None, "Modelfile: none can't be read: No such file"),
        (
            ["create", "x", "-f", "-"],
            "FROM m.gguf\n\nPARAMETER heat 1\n",
            "Modelfile, line 3: unkn",
        ),
        (["create", "./x", "-f", "-"], "FROM m.gguf", "./x"),
    ):
        failed = caudal(*arguments, text=text)
        assert failed.exit_code == 1
        assert words in failed.stderr.splitlines()[-1]
