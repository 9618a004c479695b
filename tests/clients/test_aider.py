"""aider, which speaks OpenAI's chat API through LiteLLM."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.clients.checks import check_accepted
from support.clients.home import Home
from support.clients.server import ServeScript

CAUDAL = Path(sys.executable).with_name("caudal")
ANSWER = "hello.txt\n```\nhello from Caudal\n```\n"


@pytest.mark.parametrize("launched", [False, True])
def test_writes_a_file(home: Home, serve_script: ServeScript, launched: bool):
    server = serve_script(lambda _: ANSWER)
    program = home.programs.python("aider")
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    if launched:
        environment |= {
            "CAUDAL_API_KEY": server.key,
            "PATH": f"{program.parent}:{home.programs.path}",
        }
        begin = [CAUDAL, "launch", "aider", "--url", server.url, "--"]
    else:
        environment |= {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": server.key}
        begin = [program, "--model", "openai/smollm2"]
    command = [
        *(*begin, "--edit-format", "whole"),
        *("--no-git", "--yes-always", "--no-show-model-warnings"),
        # What it would ask other hosts for, or show in a browser.
        *("--no-check-update", "--no-show-release-notes", "--no-analytics"),
        *("--message", "Write hello from Caudal into hello.txt", "hello.txt"),
    ]
    finished = home.run(command, environment)
    assert finished.code == 0, str(finished)
    assert (home.project / "hello.txt").read_text() == "hello from Caudal\n"
    check_accepted(server.record)
