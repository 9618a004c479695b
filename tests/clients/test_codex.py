"""Codex, which speaks OpenAI's responses API and takes an address from its configuration."""

from __future__ import annotations

from support.clients.checks import check_accepted, check_round_trip
from support.clients.home import Finished, Home
from support.clients.scripts import COMMAND, RESULT, call, call_with_text, last_message, uses
from support.clients.server import ClientServer, ServeScript

CONFIG = """\
model = "{model}"
model_provider = "caudal"

[model_providers.caudal]
name = "Caudal"
base_url = "{url}/v1"
env_key = "CAUDAL_API_KEY"
"""


def ask(
    home: Home,
    server: ClientServer,
    prompt: str,
    model: str = "smollm2",
) -> Finished:
    home.write(".codex/config.toml", CONFIG.format(url=server.url, model=model))
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    command = ["codex", "exec", *options, prompt]
    return home.run(command, {"CAUDAL_API_KEY": server.key})


def test_runs_a_command(home: Home, serve_script: ServeScript):
    server = serve_script(uses("exec_command", {"cmd": COMMAND}))
    check_round_trip(ask(home, server, "Say hello."), server.record)
    items = server.record.of("POST", "/v1/responses")[-1].body["input"]
    [output] = [item for item in items if item["type"] == "function_call_output"]
    assert RESULT in str(output["output"])


PATCH = """\
*** Begin Patch
*** Add File: hello.txt
+hello from Caudal
*** End Patch
"""


def test_applies_a_patch(home: Home, serve_script: ServeScript):
    """A model that Codex knows by name is offered a tool that takes text by a grammar."""

    def script(prompt: str) -> str:
        return "Done." if "Success." in prompt else call_with_text("apply_patch", PATCH)

    server = serve_script(script, name="gpt-5.5")
    finished = ask(home, server, "Write hello.txt.", model="gpt-5.5")
    assert finished.code == 0, str(finished)
    assert finished.output == "Done.\n"
    assert (home.project / "hello.txt").read_text() == "hello from Caudal\n"
    check_accepted(server.record)


def test_asks_another_agent(home: Home, serve_script: ServeScript):
    """By a function in a namespace."""

    def script(prompt: str) -> str:
        last = last_message(prompt)
        if "agent_id" in last:
            return "It was asked."
        if "Ask another agent" in last:
            return call("multi_agent_v1__spawn_agent", {"message": "Say hello."})
        return "plain answer"

    server = serve_script(script)
    finished = ask(home, server, "Ask another agent.")
    assert finished.code == 0, str(finished)
    assert "It was asked." in finished.errors  # where Codex tells its way to the last answer
    check_accepted(server.record)
    calls = [
        item
        for exchange in server.record.of("POST", "/v1/responses")
        for item in exchange.body["input"]
        if item["type"] == "function_call"
    ]
    assert {(item["namespace"], item["name"]) for item in calls} == {
        ("multi_agent_v1", "spawn_agent")
    }
