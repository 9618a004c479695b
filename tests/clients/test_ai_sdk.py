"""Vercel's AI SDK; what is asked and expected is in `ai_sdk.test.mjs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.clients.home import Home
from support.clients.node import run_node_tests
from support.clients.scripted_model import THINKING_TEMPLATE
from support.clients.scripts import COMMAND, uses
from support.clients.server import ServeScript


def answer(prompt: str) -> str:
    if "unicode" in prompt:
        return "día 🦙 日本"
    return "word " * 2000 if "long" in prompt else uses("Bash", {"command": COMMAND})(prompt)


def thoughtful_answer(prompt: str) -> str:
    if prompt.endswith("</think>\n\n"):
        return answer(prompt)
    return f"<think>\nlet me see\n</think>\n\n{answer(prompt)}"


@pytest.mark.parametrize("thinks", [False, True])
def test_every_way(home: Home, serve_script: ServeScript, thinks: bool):
    template = THINKING_TEMPLATE if thinks else None
    server = serve_script(thoughtful_answer if thinks else answer, template)
    file = Path(__file__).with_name("ai_sdk.test.mjs")
    finished = run_node_tests(home, file, server, THINKS="yes" if thinks else "no")
    assert finished.code == 0, str(finished)
