"""pi, a coding agent that speaks OpenAI's chat and responses APIs and Anthropic's messages."""

from __future__ import annotations

import json

import pytest

from support.clients.checks import check_round_trip
from support.clients.home import Home
from support.clients.scripts import COMMAND, uses
from support.clients.server import ServeScript


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("openai-completions", "/v1"),
        ("openai-responses", "/v1"),
        ("anthropic-messages", ""),
    ],
)
def test_runs_a_command(home: Home, serve_script: ServeScript, api: str, path: str):
    server = serve_script(uses("bash", {"command": COMMAND}))
    provider = {
        "baseUrl": server.url + path,
        "api": api,
        "apiKey": server.key,
        "models": [{"id": "smollm2"}],
    }
    home.write(".pi/agent/models.json", json.dumps({"providers": {"caudal": provider}}))
    finished = home.run(["pi", "-p", "--provider", "caudal", "--model", "smollm2", "Say hello."])
    check_round_trip(finished, server.record)
