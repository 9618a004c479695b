"""What is said of limits: by each API in its own words, always with the limit's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caudal.errors import CaudalError, LimitError, QueueFullError, RequestTimeoutError
from caudal.server.errors import caudal_error_response

RATE = LimitError("requests_per_minute", "Too many requests.", retry_after=7)
OVERLOADED = LimitError("max_bodies", "Too much at once.", status=503, retry_after=1)
LATE = RequestTimeoutError("Too late.", "first_token_timeout", 3)
FULL = QueueFullError(3, 2)
OPENAI = {
    RATE: (429, "rate_limit_error", "rate_limit_exceeded"),
    FULL: (429, "rate_limit_error", "queue_full"),
    OVERLOADED: (503, "server_error", "max_bodies"),
    LATE: (504, "server_error", "timeout"),
}
ANTHROPIC = {
    RATE: (429, "rate_limit_error"),
    FULL: (429, "rate_limit_error"),
    OVERLOADED: (529, "overloaded_error"),
    LATE: (504, "timeout_error"),
}
OLLAMA = {RATE: 429, FULL: 503, OVERLOADED: 503, LATE: 504}


def told(path: str, error: CaudalError) -> tuple[int, Any, dict[str, str]]:
    response = caudal_error_response({"type": "http", "path": path, "headers": []}, error)
    headers = {name: response.headers[name] for name in ("retry-after", "x-caudal-limit")}
    return response.status_code, json.loads(response.body), headers


@pytest.mark.parametrize("error", OPENAI, ids=lambda error: error.limit)
def test_a_limit_is_named_with_a_time_to_retry(error: LimitError) -> None:
    said = {"retry-after": str(error.retry_after), "x-caudal-limit": error.limit}
    for path in ("/v1/chat/completions", "/v1/embeddings", "/completion"):
        status, body, headers = told(path, error)
        assert (status, body["error"]["type"], body["error"]["code"]) == OPENAI[error]
        assert headers == said
    status, body, headers = told("/v1/messages", error)
    assert (status, body["error"]["type"]) == ANTHROPIC[error]
    assert headers == said
    status, body, headers = told("/api/chat", error)
    assert status == OLLAMA[error]
    assert body["error"]
    assert headers == said
