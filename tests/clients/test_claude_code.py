"""Claude Code, with nothing set but the address and a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.clients.checks import check_accepted, check_round_trip
from support.clients.home import Finished, Home
from support.clients.scripts import COMMAND, RESULT, call, uses
from support.clients.server import ClientServer, ServeScript


def ask(home: Home, server: ClientServer, prompt: str, *options: str) -> Finished:
    environment = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": server.key}
    return home.run(["claude", "-p", prompt, *options], environment)


def test_runs_a_command(home: Home, serve_script: ServeScript):
    server = serve_script(uses("Bash", {"command": COMMAND, "description": "Says hello"}))
    finished = ask(home, server, "Say hello.", "--allowedTools", "Bash(echo:*)")
    check_round_trip(finished, server.record)
    [result] = _results(server)
    assert RESULT in str(result["content"])
    assert not result.get("is_error")


def test_reads_a_file(home: Home, serve_script: ServeScript):
    (home.project / "hello.txt").write_text(f"{RESULT}\n")
    server = serve_script(uses("Read", {"file_path": str(home.project / "hello.txt")}))
    check_round_trip(ask(home, server, "Read hello.txt."), server.record)


def test_looks_for_a_tool(home: Home, serve_script: ServeScript):
    """A tool that Claude Code keeps back is offered once it has been looked for."""

    def script(prompt: str) -> str:
        if '"name": "NotebookEdit"' in prompt:
            return "It is here."
        return call("ToolSearch", {"query": "select:NotebookEdit", "max_results": 1})

    server = serve_script(script)
    finished = ask(home, server, "Look for NotebookEdit.")
    assert finished.output == "It is here.\n", str(finished)
    check_accepted(server.record)
    assert len(server.record.of("POST", "/v1/messages")) == 2


def test_the_default_model_takes_a_long_conversation(
    home: Home, serve_long: Callable[[int], ClientServer]
):
    """Its own prompt of 12,000 tokens and a project's notes, computed by the real model."""
    (home.project / "CLAUDE.md").write_text("Tests are run by make test. " * 1500)
    server = serve_long(24576)
    finished = ask(home, server, "What is gravity?")
    assert finished.code == 0, str(finished)
    check_accepted(server.record)
    events = server.record.of("POST", "/v1/messages")[-1].answer
    assert "event: message_stop" in events


def _results(server: ClientServer) -> list[dict[str, Any]]:
    """The results of tools in the last request."""
    body = server.record.of("POST", "/v1/messages")[-1].body
    return [
        part
        for message in body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "tool_result"
    ]
