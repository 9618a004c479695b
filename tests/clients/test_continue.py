"""Continue's command line, `cn`, which speaks OpenAI's chat API."""

from __future__ import annotations

from support.clients.checks import check_round_trip
from support.clients.home import Home
from support.clients.scripts import COMMAND, uses
from support.clients.server import ServeScript

CONFIG = """\
name: local
version: 1.0.0
schema: v1
models:
  - name: SmolLM2
    provider: openai
    model: smollm2
    apiBase: {url}/v1
    apiKey: {key}
    roles: [chat, edit, apply]
    capabilities: [tool_use]
"""


def test_runs_a_command(home: Home, serve_script: ServeScript):
    server = serve_script(uses("Bash", {"command": COMMAND}))
    home.write(".continue/config.yaml", CONFIG.format(url=server.url, key=server.key))
    finished = home.run(
        ["cn", "-p", "--auto", "--config", home.home / ".continue/config.yaml", "Say hello."]
    )
    check_round_trip(finished, server.record)
