"""Failures as Anthropic's API words them: `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from caudal.errors import ContextOverflowError
from caudal.server.request_ids import request_id
from caudal.service.words import MAX_MESSAGE, shortened

_PREFIX = "/v1/messages"
_MODELS = "/v1/models"

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
    """Whether a request is for a route of Anthropic's API, or for one that would be.

    `/v1/models` is a route of OpenAI's API too: Anthropic's clients name a version of theirs.
    """
    path: str = scope["path"]
    if path == _PREFIX or path.startswith(f"{_PREFIX}/"):
        return True
    if path == _MODELS or path.startswith(f"{_MODELS}/"):
        return "anthropic-version" in Headers(scope=scope)
    return False


def anthropic_status(status: int) -> int:
    """The status that Anthropic's API has for one of HTTP's."""
    return OVERLOADED if status == 503 else status


def overflow_message(error: ContextOverflowError) -> str:
    """What is too long, in Anthropic's words: clients look for these, to go on with less."""
    if error.max_tokens is None:
        return f"prompt is too long: {error.prompt_tokens} tokens > {error.max_model_len} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {error.prompt_tokens} + "
        f"{error.max_tokens} > {error.max_model_len}, decrease input length or `max_tokens` and "
        "try again"
    )


def error_body(
    scope: Scope, status: int, message: str, details: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """An error's body, also sent as an event where a stream fails half-way.

    Args:
        scope: Of the request.
        status: One of Anthropic's, which decides the error's type.
        message: What went wrong.
        details: For clients that do something about it.
    """
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    more = {} if details is None else {"details": details}
    return {
        "type": "error",
        "error": {"type": kind, "message": shortened(message, MAX_MESSAGE), **more},
        "request_id": request_id(scope),
    }
