"""`caudal launch`: agents are started with what they need, and with nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import RunningServer, running_server

AGENT = """\
#!{python}
import json, os, sys
print(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(serve_fake(ScriptedExecutor(script=b"x"))) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    programs = tmp_path / ".local" / "bin"
    programs.mkdir(parents=True)
    for name in ("claude", "codex", "opencode", "pi"):
        (programs / name).write_text(AGENT.format(python=sys.executable))
        (programs / name).chmod(0o755)
    return tmp_path


def launch(home: Path, *words: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(home / ".local" / "bin"), "/usr/bin", "/bin"])
    environment = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}
    if key is not None:
        environment["CAUDAL_API_KEY"] = key
    command = [Path(sys.executable).with_name("caudal"), "launch", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def test_an_agent_takes_the_place_of_the_command(home: Path, server: RunningServer):
    ended = launch(home, "claude", "--url", server.url, "--", "-p", "Hello")
    assert ended.returncode == 7, ended.stderr
    told = json.loads(ended.stdout)
    assert told["arguments"] == ["--model", "fake", "-p", "Hello"]
    environment = told["environment"]
    assert environment["ANTHROPIC_BASE_URL"] == server.url
    assert environment["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "fake"
    context = server.http.get("/v1/models/fake").json()["max_model_len"]
    assert environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(context)
    assert f"{context:,}" in ended.stderr  # too short for it, which is said


def test_codex_and_opencode_are_told_without_a_file(home: Path, server: RunningServer):
    codex = launch(home, "codex", "--url", server.url, "--model", "fake", key="s3cret")
    arguments = json.loads(codex.stdout)["arguments"]
    assert f'model_providers.caudal.base_url="{server.url}/v1"' in arguments
    assert 'model_providers.caudal.env_key="CAUDAL_API_KEY"' in arguments
    assert "s3cret" not in " ".join(arguments)
    opencode = launch(home, "opencode", "--url", server.url)
    content = json.loads(json.loads(opencode.stdout)["environment"]["OPENCODE_CONFIG_CONTENT"])
    assert content["model"] == "caudal/fake"
    assert sorted(path.name for path in home.iterdir()) == [".local"]


def test_what_is_written_is_shown_first_and_undone(home: Path, server: RunningServer):
    file = home / ".pi" / "agent" / "models.json"
    refused = launch(home, "pi", "--url", server.url)
    assert refused.returncode == 1
    assert f'+      "baseUrl": "{server.url}/v1"' in refused.stderr
    assert "say --yes" in refused.stderr
    assert not file.exists()
    assert launch(home, "pi", "--url", server.url, "--yes").returncode == 7
    [model] = json.loads(file.read_text())["providers"]["caudal"]["models"]
    assert model["id"] == "fake"
    again = launch(home, "pi", "--url", server.url)
    assert again.returncode == 7, again.stderr
    assert "gone again" in launch(home, "pi", "--undo").stdout
    assert not file.exists()


def test_print_starts_and_writes_nothing(home: Path, server: RunningServer):
    printed = launch(home, "pi", "--url", server.url, "--print", key="s3cret")
    assert printed.returncode == 0
    assert "pi --provider caudal --model fake" in printed.stdout
    assert '# {\n#   "providers": {' in printed.stdout
    printed = launch(
        home, "claude", "--url", "127.0.0.1:1", "--model", "m", "--print", key="s3cret"
    )
    assert 'ANTHROPIC_AUTH_TOKEN="$CAUDAL_API_KEY"' in printed.stdout
    assert "s3cret" not in printed.stdout
    assert sorted(path.name for path in home.iterdir()) == [".local"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vim"], "there is no agent called vim; there are claude, codex"),
        (["qwen"], "Qwen Code isn't installed: there is no `qwen`. Get it with: npm install"),
        (["claude", "--url", "127.0.0.1:1"], "Start one with: caudal serve MODEL"),
        (["claude", "--model", "nobody"], "nobody"),
    ],
)
def test_what_can_not_be_had_is_said(
    words: list[str], said: str, home: Path, server: RunningServer
):
    url = [] if "--url" in words else ["--url", server.url]
    ended = launch(home, *words, *url)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert ended.stdout == ""
