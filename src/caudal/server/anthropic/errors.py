"""Failures as Anthropic's API words them: `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from caudal.server.request_ids import request_id

_PREFIX = "/v1/messages"

OVERLOADED = 529
"""Anthropic's status for a server that can't answer now."""

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is for a route of Anthropic's API, or for one that would be."""
    path: str = scope["path"]
    return path == _PREFIX or path.startswith(f"{_PREFIX}/")


def anthropic_status(status: int) -> int:
    """The status that Anthropic's API has for one of HTTP's."""
    return OVERLOADED if status == 503 else status


def error_body(scope: Scope, status: int, message: str) -> dict[str, Any]:
    """An error's body, also sent as an event where a stream fails half-way.

    Args:
        scope: Of the request.
        status: One of Anthropic's, which decides the error's type.
        message: What went wrong.
    """
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id(scope),
    }
