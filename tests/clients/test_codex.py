"""Codex, which speaks OpenAI's responses API and takes an address from its configuration."""

from __future__ import annotations

from collections.abc import Callable

from support.clients.checks import check_accepted, check_round_trip
from support.clients.home import Finished, Home
from support.clients.scripts import COMMAND, RESULT, uses
from support.clients.server import ClientServer, ServeScript

CONFIG = """\
model = "smollm2"
model_provider = "caudal"

[model_providers.caudal]
name = "Caudal"
base_url = "{url}/v1"
env_key = "CAUDAL_API_KEY"
"""


def ask(home: Home, server: ClientServer, prompt: str) -> Finished:
    home.write(".codex/config.toml", CONFIG.format(url=server.url))
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return home.run(["codex", "exec", *options, prompt], {"CAUDAL_API_KEY": server.key})


def test_runs_a_command(home: Home, serve_script: ServeScript):
    server = serve_script(uses("exec_command", {"cmd": COMMAND}))
    check_round_trip(ask(home, server, "Say hello."), server.record)
    items = server.record.of("POST", "/v1/responses")[-1].body["input"]
    [output] = [item for item in items if item["type"] == "function_call_output"]
    assert RESULT in str(output["output"])


def test_the_default_model_takes_a_long_conversation(
    home: Home, serve_long: Callable[[int], ClientServer]
):
    (home.project / "AGENTS.md").write_text("Tests are run by make test. " * 1000)
    server = serve_long(16384)
    finished = ask(home, server, "What is gravity?")
    assert finished.code == 0, str(finished)
    check_accepted(server.record)
    assert "event: response.completed" in server.record.of("POST", "/v1/responses")[-1].answer
