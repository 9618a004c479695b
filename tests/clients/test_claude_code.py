"""Claude Code, with nothing set but the address and a key."""

from __future__ import annotations

import json
import re
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


def test_takes_long_prompts(home: Home, serve_script: ServeScript):
    """Its own prompt has 12,000 tokens; a project's notes come on top."""
    (home.project / "CLAUDE.md").write_text("Tests are run by make test. " * 1500)
    server = serve_script(lambda _: "plain answer")
    finished = ask(home, server, "Say hello.")
    assert finished.output == "plain answer\n", str(finished)
    check_accepted(server.record)
    answer = server.record.of("POST", "/v1/messages")[-1].answer
    [start] = re.findall(r"^data: (.*message_start.*)$", answer, re.MULTILINE)
    usage = json.loads(start)["message"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 20_000


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
