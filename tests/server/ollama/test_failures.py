"""Failures under `/api/` are what Ollama's clients read: `{"error": "…"}`, with its statuses."""

from __future__ import annotations

import json

import ollama
import pytest

from caudal.errors import QueueFullError
from caudal.server.errors import caudal_error_response
from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve


def test_versions_that_clients_compare(hello: RunningServer):
    versions = hello.http.get("/api/version").json()
    assert [int(part) for part in versions["version"].split(".")] > [0, 13, 4]
    assert hello.http.head("/api/version").status_code == 200


def test_what_is_no_route(hello: RunningServer):
    response = hello.http.get("/api/none")
    assert response.status_code == 404
    assert response.json() == {"error": "There is no route GET /api/none."}


def test_a_missing_key(serve: Serve):
    server = serve(ScriptedExecutor(script=b"x"), api_key="secret")
    with pytest.raises(ollama.ResponseError) as caught:
        ollama.Client(server.url).list()
    assert caught.value.status_code == 401
    assert "API key" in caught.value.error


def test_a_full_queue_is_the_servers_fault():
    scope = {"type": "http", "path": "/api/chat", "headers": []}
    response = caudal_error_response(scope, QueueFullError(3, retry_after=2))
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert json.loads(response.body)["error"].startswith("server busy, please try again.")
