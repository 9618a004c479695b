"""LiteLLM: the library, by each provider that speaks an API of Caudal's, and the proxy."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from support.clients.checks import check_accepted
from support.clients.home import Home
from support.clients.scripts import COMMAND, uses
from support.clients.server import ClientServer, ServeScript

EXPECTED = {
    "text": "plain answer",
    "streamed text": "plain answer",
    "a call": COMMAND,
    "a demanded call": COMMAND,
    "cached parts": "assistant",
    "reasoning effort": "plain answer",
    "thinking": "plain answer",
    "another model's history": "plain answer",
    "a schema": ["name"],
    "user and metadata": "plain answer",
    "anthropic_messages": "plain answer",
}
MORE_OF_OPENAI = {"responses": "plain answer", "embedding": 2, "completion": "plain answer"}
RERANK = {"rerank of hosted_vllm": 2, "rerank of cohere": 2, "rerank of jina_ai": 2}

PROXY_KEY = "sk-proxy"
CONFIG = """\
model_list:
  - model_name: "*"
    litellm_params: {{model: hosted_vllm/smollm2, api_base: {url}/v1, api_key: {key}}}
"""


@pytest.mark.parametrize(
    ("provider", "path", "more"),
    [
        ("openai", "/v1", MORE_OF_OPENAI),
        ("hosted_vllm", "/v1", {**MORE_OF_OPENAI, **RERANK}),
        ("lm_studio", "/v1", MORE_OF_OPENAI),
        ("litellm_proxy", "/v1", MORE_OF_OPENAI),
        ("anthropic", "", {}),
    ],
)
def test_library(
    home: Home,
    serve_script: ServeScript,
    provider: str,
    path: str,
    more: dict[str, object],
):
    server = serve_script(uses("Bash", {"command": COMMAND}))
    shutil.copy(Path(__file__).with_name("litellm_calls.py"), home.project)
    environment = {
        "CAUDAL_URL": server.url,
        "CAUDAL_KEY": server.key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [home.programs.python("litellm", "python"), "litellm_calls.py"]
    finished = home.run([*command, f"{provider}/smollm2", server.url + path], environment)
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith("{")]
    gave = {line["name"]: line.get("gave", line.get("error")) for line in lines}
    assert gave == {**EXPECTED, **more}, str(finished)
    check_accepted(server.record)


def test_proxy(home: Home, serve_script: ServeScript):
    server = serve_script(uses("Bash", {"command": COMMAND}))
    ask: list[Any] = [{"role": "user", "content": "hi"}]
    with proxy(home, server) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=PROXY_KEY, max_retries=0)
        answer = client.chat.completions.create(model="smollm2", messages=ask)
        assert answer.choices[0].message.content == "plain answer"
        stream = client.chat.completions.create(model="smollm2", messages=ask, stream=True)
        texts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        assert "".join(texts) == "plain answer"
        assert client.responses.create(model="smollm2", input="hi").output_text == "plain answer"
        assert len(client.embeddings.create(model="smollm2", input=["x", "y"]).data) == 2
        other = anthropic.Anthropic(base_url=url, api_key=PROXY_KEY, max_retries=0)
        message = other.messages.create(model="claude-opus-5", max_tokens=500, messages=ask)
        assert [block.text for block in message.content if block.type == "text"] == ["plain answer"]
    check_accepted(server.record)


@contextlib.contextmanager
def proxy(home: Home, server: ClientServer) -> Iterator[str]:
    """A LiteLLM proxy in front of the server; gives its address."""
    home.write("litellm.yaml", CONFIG.format(url=server.url, key=server.key))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--config", home.home / "litellm.yaml", "--host", "127.0.0.1", "--port", port)
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": PROXY_KEY}
    url = f"http://127.0.0.1:{port}"
    with home.started([home.programs.python("litellm"), *options], environment) as process:
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/health/liveliness").status_code == 200:
                    break
            time.sleep(0.5)
        else:
            pytest.fail("the proxy did not start")
        yield url
