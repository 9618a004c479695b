"""Qwen Code, which speaks OpenAI's chat API."""

from __future__ import annotations

from support.clients.checks import check_round_trip
from support.clients.home import Home
from support.clients.scripts import RESULT, uses
from support.clients.server import ServeScript


def test_reads_a_file(home: Home, serve_script: ServeScript):
    (home.project / "hello.txt").write_text(f"{RESULT}\n")
    path = str(home.project / "hello.txt")
    server = serve_script(uses("read_file", {"file_path": path, "absolute_path": path}))
    environment = {
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": server.key,
        "OPENAI_MODEL": "smollm2",
    }
    finished = home.run(["qwen", "-y", "-p", "Read hello.txt."], environment)
    check_round_trip(finished, server.record)
