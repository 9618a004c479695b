"""`/api/embed` and `/api/embeddings`, as Ollama's official client asks and reads them."""

from __future__ import annotations

import asyncio
import math

import ollama
import pytest

from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve


@pytest.fixture
def server(serve: Serve) -> RunningServer:
    return serve(ScriptedExecutor(), max_model_len=64)


def test_one_or_several(server: RunningServer):
    client = ollama.Client(server.url)
    one = client.embed("fake", "Hi")
    assert len(one.embeddings) == 1
    assert math.hypot(*one.embeddings[0]) == pytest.approx(1)
    assert one.prompt_eval_count == 2
    assert one.total_duration > one.load_duration > 0  # type: ignore[operator]
    several = asyncio.run(ollama.AsyncClient(server.url).embed("fake", ["Hi", "there"]))
    assert several.embeddings[0] == one.embeddings[0]
    assert (len(several.embeddings), several.prompt_eval_count) == (2, 7)
    assert client.embed("fake", "").embeddings == []
    assert client.embed("fake", []).embeddings == []


def test_what_is_too_long_is_cut_unless_that_is_forbidden(server: RunningServer):
    client = ollama.Client(server.url)
    assert client.embed("fake", "x" * 100).prompt_eval_count == 64
    assert client.embed("fake", "x" * 100, options={"num_ctx": 32}).prompt_eval_count == 32
    with pytest.raises(ollama.ResponseError) as caught:
        client.embed("fake", "x" * 100, truncate=False)
    assert caught.value.status_code == 400


def test_the_older_route(server: RunningServer):
    client = ollama.Client(server.url)
    assert len(client.embeddings("fake", "Hi").embedding) == len(
        client.embed("fake", "Hi").embeddings[0]
    )
    assert client.embeddings("fake").embedding == []
    again = asyncio.run(ollama.AsyncClient(server.url).embeddings("fake", "Hi"))
    assert again.embedding == client.embeddings("fake", "Hi").embedding
    with pytest.raises(ollama.ResponseError, match="prompt has 100 tokens"):
        client.embeddings("fake", "x" * 100)
