"""Simon Willison's `llm`."""

from __future__ import annotations

import json

import pytest

from support.clients.checks import check_accepted
from support.clients.home import Finished, Home
from support.clients.scripts import uses
from support.clients.server import ClientServer, ServeScript

# `llm` sends no key to an address of one's own unless it is told which.
MODELS = """\
- model_id: caudal
  model_name: smollm2
  api_base: {url}/v1
  api_key_name: caudal
  supports_tools: true
  supports_schema: true
"""


def ask(home: Home, server: ClientServer, *arguments: str) -> Finished:
    home.write(".config/io.datasette.llm/extra-openai-models.yaml", MODELS.format(url=server.url))
    home.write(".config/io.datasette.llm/keys.json", json.dumps({"caudal": server.key}))
    finished = home.run([home.programs.python("llm"), "-m", "caudal", *arguments])
    assert finished.code == 0, str(finished)
    check_accepted(server.record)
    return finished


@pytest.mark.parametrize("options", [(), ("--no-stream",), ("-o", "temperature", "0.5")])
def test_answers(home: Home, serve_script: ServeScript, options: tuple[str, ...]):
    server = serve_script(lambda _: "plain answer")
    assert ask(home, server, *options, "Say hello.").output == "plain answer\n"


@pytest.mark.parametrize("options", [(), ("--no-stream",)])
def test_answers_to_a_schema(home: Home, serve_script: ServeScript, options: tuple[str, ...]):
    server = serve_script(lambda _: '{"name": "Rex", "age": 3}')
    finished = ask(home, server, "--schema", "name, age int", *options, "A dog.")
    assert json.loads(finished.output) == {"name": "Rex", "age": 3}


@pytest.mark.parametrize("options", [(), ("--no-stream",)])
def test_runs_a_tool(home: Home, serve_script: ServeScript, options: tuple[str, ...]):
    server = serve_script(uses("llm_time", {}, result="timezone_offset"))
    finished = ask(home, server, "-T", "llm_time", *options, "What time is it?")
    assert "The tool said timezone_offset." in finished.output


def test_goes_on_with_a_conversation(home: Home, serve_script: ServeScript):
    server = serve_script(lambda prompt: f"{prompt.count('<|im_start|>user')} questions")
    ask(home, server, "One.")
    assert ask(home, server, "-c", "Two.").output == "2 questions\n"
