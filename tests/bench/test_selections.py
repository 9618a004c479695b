"""What is chosen on the command line, and how peers are told."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import run as run_module
from benchmarks.cases import CASES, EngineCase
from benchmarks.files import KNOWN_FILES, ModelFile
from benchmarks.llama_tools import LlamaTools
from benchmarks.peers import all_peers, caudal, llama_cpp, vllm
from benchmarks.peers.llama_cpp import BuiltPeer
from benchmarks.selections import PUBLISHED, Part

TOOL = """#!/bin/sh
case "$*" in *--help*) echo "%s"; exit ;; esac
echo "$0 $*" >> %s
case "$0" in
*batched*) echo '{"t_pp": 1.0, "t": 2.0}' ;;
*) echo '[{"avg_ns": 1e9}]' ;;
esac
"""


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """What would be measured."""
    measured: list[Part] = []

    class Measuring:
        def __init__(self, *_: object) -> None:
            self.reports: dict[int, Any] = {}

        def measure(self, part: Part) -> None:
            measured.append(part)

    monkeypatch.setattr(run_module, "Measuring", Measuring)
    monkeypatch.setattr(run_module.signal, "signal", lambda *_: None)
    return measured


def command(*words: str) -> int:
    app = typer.Typer()
    app.command()(run_module.run)
    return CliRunner().invoke(app, words).exit_code


def test_what_is_published_can_be_measured(parts: list[Part]):
    assert command("--published", "--runs", "2") == 0
    assert parts == list(PUBLISHED)
    for known, wanted in (
        (KNOWN_FILES, [name for part in PUBLISHED for name in part.models]),
        (CASES, [name for part in PUBLISHED for name in part.cases]),
        (
            all_peers({"ik_llama": Path()}),
            [name for part in PUBLISHED for name in part.without],
        ),
    ):
        assert set(wanted) <= {item.name for item in known}
    assert command("--published", "--case", "decode") == 2


def test_each_number_of_threads_is_a_part(parts: list[Part]):
    words = ("--model", "smollm2-q8_0", "--case", "long-q8", "--threads", "1", "--threads", "2")
    assert command(*words) == 0
    assert [part.threads for part in parts] == [1, 2]
    assert {(*part.models, *part.cases) for part in parts} == {("smollm2-q8_0", "long-q8")}
    assert command("--case", "guess-code-9") == 2


@pytest.mark.parametrize("repacks", [True, False])
def test_llama_tools_are_told_to_keep_8_bits(tmp_path: Path, repacks: bool):
    said = tmp_path / "said"
    for name in ("llama-bench", "llama-batched-bench"):
        tool = tmp_path / name
        tool.write_text(TOOL % ("--run-time-repack" if repacks else "", said))
        tool.chmod(0o755)
    assert LlamaTools(tmp_path).knows("llama-bench", "--run-time-repack") is repacks
    model: Any = type("Model", (), {"path": Path("m.gguf"), "name": "m"})
    for kv_type in ("f16", "q8"):
        session = BuiltPeer("b", tmp_path).engine(model, 1, 99, kv_type)
        for prompt_tokens, steps in ((512, 0), (4096, 64)):
            case = EngineCase(
                name="c", title="", sequences=1, prompt_tokens=prompt_tokens, steps=steps
            )
            session.measure(case, seed=1)
    lines = [line.split() for line in said.read_text().splitlines()]
    assert len(lines) == 4
    for words in lines:
        assert words.count("-fa") <= 1
    for words in lines[:2]:
        assert "-ctk" not in words
        assert ("-rtr" in words) is repacks
    for words in lines[2:]:
        options = dict(itertools.pairwise(words))
        assert (options["-ctk"], options["-ctv"], options["-fa"]) == ("q8_0", "q8_0", "1")


def test_guesses_are_asked_of_servers(monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []

    def server(command: list[str], log: str, *_: object, **__: object) -> None:
        commands.append([*command, log])

    model: Any = type("Model", (ModelFile,), {"__init__": lambda self: None})()
    for name, value in (("name", "m"), ("path", Path("m.gguf")), ("represents_family", False)):
        object.__setattr__(model, name, value)
    for module in (caudal, llama_cpp, vllm):
        monkeypatch.setattr(module, "Server", server)
    monkeypatch.setattr(vllm, "venv_python", lambda _: Path("python"))
    monkeypatch.setattr(vllm.VllmPeer, "_copy", lambda self, model: Path("copy"))
    monkeypatch.setattr(LlamaTools, "command", lambda self, name: (Path(name), {}))
    for peer in (caudal.CaudalPeer(), BuiltPeer("b", Path()), vllm.VllmPeer()):
        for guesses in (False, True):
            peer.server(model, 2, 1024, 8, guesses)
    assert len({words[-1] for words in commands}) == 6  # logs of their own
    alone, guessing = commands[::2], commands[1::2]
    assert alone[0][-3:-1] == ["--speculative", "off"]
    assert guessing[0][-3:-1] == ["--speculative", "ngram"]
    assert "--spec-type" in guessing[1]
    assert json.loads(guessing[2][-2])["method"] == "ngram"
    assert not any("spec" in word for words in alone[1:] for word in words)
