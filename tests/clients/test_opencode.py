"""opencode, which speaks OpenAI's chat API through the AI SDK."""

from __future__ import annotations

import json

from support.clients.checks import check_round_trip
from support.clients.home import Home
from support.clients.scripts import COMMAND, uses
from support.clients.server import ServeScript


def test_runs_a_command(home: Home, serve_script: ServeScript):
    server = serve_script(uses("bash", {"command": COMMAND, "description": "Says hello"}))
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Caudal",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": server.key},
        "models": {"smollm2": {"name": "SmolLM2"}},
    }
    config = {"model": "caudal/smollm2", "provider": {"caudal": provider}}
    home.write(".config/opencode/opencode.json", json.dumps(config))
    finished = home.run(["opencode", "run", "Say hello."])
    check_round_trip(finished, server.record)
