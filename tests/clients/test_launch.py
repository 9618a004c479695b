"""Agents as `caudal launch` starts them, with nothing else set up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.clients.checks import check_round_trip
from support.clients.home import Home
from support.clients.scripts import COMMAND, RESULT, uses
from support.clients.server import ServeScript

CAUDAL = Path(sys.executable).with_name("caudal")
CODEX = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
BASH = uses("bash", {"command": COMMAND, "description": "Says hello"})


@pytest.mark.parametrize(
    ("agent", "script", "arguments"),
    [
        (
            "claude",
            uses("Bash", {"command": COMMAND, "description": "Says hello"}),
            ("-p", "Say hello.", "--allowedTools", "Bash(echo:*)"),
        ),
        ("codex", uses("exec_command", {"cmd": COMMAND}), (*CODEX, "Say hello.")),
        ("opencode", BASH, ("run", "Say hello.")),
        ("pi", BASH, ("-p", "Say hello.")),
        ("copilot", BASH, ("-p", "Say hello.", "--allow-all-tools")),
    ],
)
def test_an_agent_runs_a_command(
    agent: str, script: object, arguments: tuple[str, ...], home: Home, serve_script: ServeScript
):
    server = serve_script(script)
    command = [CAUDAL, "launch", agent, "--yes", "--url", server.url, "--", *arguments]
    finished = home.run(command, {"CAUDAL_API_KEY": server.key})
    check_round_trip(finished, server.record)


def test_qwen_code_reads_a_file(home: Home, serve_script: ServeScript):
    (home.project / "hello.txt").write_text(f"{RESULT}\n")
    path = str(home.project / "hello.txt")
    server = serve_script(uses("read_file", {"file_path": path, "absolute_path": path}))
    command = [CAUDAL, "launch", "qwen", "--url", server.url, "--", "-y", "-p", "Read hello.txt."]
    check_round_trip(home.run(command, {"CAUDAL_API_KEY": server.key}), server.record)
