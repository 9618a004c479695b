"""Anthropic's client for Node.js; what is asked and expected is in `anthropic_node.test.mjs`."""

from __future__ import annotations

from pathlib import Path

from support.clients.home import Home
from support.clients.node import run_node_tests
from support.clients.scripts import COMMAND, uses
from support.clients.server import ServeScript


def answer(prompt: str) -> str:
    return "word " * 2000 if "long" in prompt else uses("Bash", {"command": COMMAND})(prompt)


def test_every_helper(home: Home, serve_script: ServeScript):
    file = Path(__file__).with_name("anthropic_node.test.mjs")
    finished = run_node_tests(home, file, serve_script(answer))
    assert finished.code == 0, str(finished)
