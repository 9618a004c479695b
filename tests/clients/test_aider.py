"""aider, which speaks OpenAI's chat API through LiteLLM."""

from __future__ import annotations

from support.clients.checks import check_accepted
from support.clients.home import Home
from support.clients.server import ServeScript

ANSWER = "hello.txt\n```\nhello from Caudal\n```\n"


def test_writes_a_file(home: Home, serve_script: ServeScript):
    server = serve_script(lambda _: ANSWER)
    environment = {
        "OPENAI_API_BASE": f"{server.url}/v1",
        "OPENAI_API_KEY": server.key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [
        *(home.programs.python("aider"), "--model", "openai/smollm2", "--edit-format", "whole"),
        *("--no-git", "--yes-always", "--no-show-model-warnings"),
        # What it would ask other hosts for, or show in a browser.
        *("--no-check-update", "--no-show-release-notes", "--no-analytics"),
        *("--message", "Write hello from Caudal into hello.txt", "hello.txt"),
    ]
    finished = home.run(command, environment)
    assert finished.code == 0, str(finished)
    assert (home.project / "hello.txt").read_text() == "hello from Caudal\n"
    check_accepted(server.record)
