"""Failures as Ollama's API words them: `{"error": "…"}`."""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from caudal.errors import CaudalError, QueueFullError, UnknownModelError, UnsupportedTaskError
from caudal.service.words import MAX_MESSAGE, MAX_PARAM, shortened

_PREFIX = "/api/"


def speaks_ollama(scope: Scope) -> bool:
    """Whether a request is for a route of Ollama's API, or for one that would be."""
    path: str = scope["path"]
    return path.startswith(_PREFIX)


def ollama_status(status: int, code: str | None) -> int:
    """The status that Ollama's API has for an error: a full queue isn't the client's fault there.

    Args:
        status: HTTP's.
        code: OpenAI's.
    """
    return 503 if code == "queue_full" else status


def own_words(scope: Scope, error: CaudalError) -> str | None:
    """What Ollama says of an error, where clients may look for these words.

    Args:
        scope: Of the request.
        error: What happened.
    """
    match error:
        case UnknownModelError():
            return f"model '{error.name}' not found"
        case UnsupportedTaskError():
            path: str = scope["path"]
            return f'"{error.name}" does not support {path.rpartition("/")[2]}'
        case QueueFullError():
            return (
                "server busy, please try again.  maximum pending requests exceeded "
                f"({error.most}; retry in {error.retry_after} s)"
            )
        case _:
            return None


def error_body(message: str, param: str | None = None) -> dict[str, Any]:
    """An error's body, also sent as a line where a stream fails half-way.

    Args:
        message: What went wrong.
        param: The field to blame, of which there is no word but in the message.
    """
    if param is not None and param not in message:
        message = f"{shortened(param, MAX_PARAM)}: {message}"
    return {"error": shortened(message, MAX_MESSAGE)}
