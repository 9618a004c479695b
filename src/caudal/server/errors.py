"""Every failure in OpenAI's envelope, `{"error": {"message", "type", "param", "code"}}`, or in
Anthropic's or Ollama's on their routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from caudal.errors import (
    AdapterExistsError,
    AdapterNotFoundError,
    CaudalError,
    ContextOverflowError,
    ModelLoadError,
    ParameterError,
    StoreError,
    TemplateError,
    UnknownAdapterError,
    UnsupportedTaskError,
)
from caudal.reading.explain import explain_errors
from caudal.server.anthropic import errors as anthropic
from caudal.server.encoding import JSONReply
from caudal.server.failures import NO_ROOM, describe
from caudal.server.field_names import field_names
from caudal.server.ollama import errors as ollama
from caudal.server.records import record_of
from caudal.server.request_ids import request_id
from caudal.service.words import MAX_MESSAGE, MAX_PARAM, shortened

LIMIT_HEADER = "x-caudal-limit"
"""Names the limit that a request was refused by, as `docs/limits.md` does."""

_DONT_RETRY = {"x-should-retry": "false"}
"""Tells the official clients, which else send anew what was answered with a status of the 500s."""

_ROUTES = {
    "generate": "/v1/chat/completions and /v1/completions",
    "embed": "/v1/embeddings",
    "score": "/v1/rerank and /v1/score",
}
"""What a model that can do something is asked by."""


_VLLM_KINDS = {
    UnknownAdapterError: "NotFoundError",
    AdapterNotFoundError: "NotFoundError",
    AdapterExistsError: "InvalidUserInput",
}
"""Types of errors of what only vLLM's API has."""


class ClientDisconnectedError(Exception):
    """The client went away before its answer was complete; nobody reads what is sent."""


def envelope(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error's body, also sent as an event where a stream fails half-way."""
    message = shortened(message, MAX_MESSAGE)
    param = None if param is None else shortened(param, MAX_PARAM)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(
    scope: Scope,
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
    limit: str | None = None,
    retry_after: int | None = None,
    kind: str | None = None,
) -> JSONReply:
    """An error's response; the envelope's type follows from the status, as at OpenAI.

    Args:
        scope: Of the request; its path decides whose envelope it is.
        status: HTTP's.
        message: What went wrong.
        param: The field to blame.
        code: OpenAI's, where it has one.
        headers: To be sent along.
        limit: The limit that refuses the request, by the name in `docs/limits.md`.
        retry_after: Seconds after which it is sensible to ask again.
        kind: The envelope's type, where it is another.
    """
    record_of(scope).note_error(status, code or kind or _kind(status), limit)
    more = dict(headers or {})
    if limit is not None:
        more[LIMIT_HEADER] = limit
    if retry_after is not None:
        more["Retry-After"] = str(retry_after)
    if anthropic.speaks_anthropic(scope):
        status = anthropic.anthropic_status(status)
        if param is not None and param not in message:
            message = f"{shortened(param, MAX_PARAM)}: {message}"
        return JSONReply(
            anthropic.error_body(scope, status, message),
            status,
            {**more, "request-id": request_id(scope)},
        )
    if ollama.speaks_ollama(scope):
        return JSONReply(
            ollama.error_body(message, param), ollama.ollama_status(status, code), more
        )
    body = envelope(message, kind or _kind(status), param=param, code=code)
    return JSONReply(body, status, more)


def caudal_error_response(scope: Scope, error: CaudalError) -> JSONReply:
    """The response to an error raised before the first byte of an answer."""
    record_of(scope).failure = error
    failure = describe(error)
    param = failure.param
    message = without_paths(scope, error)
    if isinstance(error, ParameterError | TemplateError):
        names = field_names(scope)
        message, param = names.message(error), names.of(error.param)
    if ollama.speaks_ollama(scope):
        words = ollama.own_words(scope, error)
        if words is not None:
            message, param = words, None
    elif isinstance(error, UnsupportedTaskError):
        routes = ", ".join(_ROUTES[each] for each in error.tasks)
        message = f"{error.verdict} It serves {routes}."
    if anthropic.speaks_anthropic(scope) and isinstance(error, ContextOverflowError):
        message = anthropic.overflow_message(error)
        param = None  # the message is to begin as Anthropic's does
    return error_response(
        scope,
        failure.status,
        message,
        param=param,
        code=failure.code,
        headers=_DONT_RETRY if failure.status == NO_ROOM else None,
        limit=failure.limit,
        retry_after=failure.retry_after,
        kind=_VLLM_KINDS.get(type(error)),
    )


def without_paths(scope: Scope, error: CaudalError) -> str:
    """An error's message, which doesn't tell clients where on this machine the store is."""
    app = scope.get("app")
    served = None if app is None else app.state.store
    message = str(error)
    if served is None or not isinstance(error, ModelLoadError | StoreError):
        return message
    return str(served.store.without_paths(message))


def error_event(error: Exception) -> dict[str, Any]:
    """The event that ends a stream which fails after its first token."""
    if isinstance(error, CaudalError):
        failure = describe(error)
        kind = _kind(failure.status)
        return envelope(str(error), kind, param=failure.param, code=failure.code)
    return envelope("Internal server error.", "server_error")


def install_error_handlers(app: FastAPI) -> None:
    """Give every failure of every route the envelope."""

    async def on_caudal_error(request: Request, error: Exception) -> JSONReply:
        assert isinstance(error, CaudalError)
        return caudal_error_response(request.scope, error)

    async def on_validation_error(request: Request, error: Exception) -> JSONReply:
        assert isinstance(error, RequestValidationError)  # of what stands in the URL
        inside = [{**each, "loc": each["loc"][1:]} for each in error.errors()]
        message, param = explain_errors(inside)
        return error_response(request.scope, 400, message, param=param)

    async def on_http_exception(request: Request, error: Exception) -> JSONReply:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code == 404 and message == HTTPStatus.NOT_FOUND.phrase:
            message = f"There is no route {request.method} {request.url.path}."
        elif error.status_code == 405:
            message = f"{request.url.path} does not accept {request.method}."
        headers = dict(error.headers or {})
        if headers.get("Allow") == "GET":
            headers["Allow"] = "GET, HEAD"  # `server/app.py` answers it as GET
        return error_response(request.scope, error.status_code, message, headers=headers)

    async def on_unexpected(request: Request, _: Exception) -> JSONReply:
        # Starlette logs the traceback.
        return error_response(request.scope, 500, "Internal server error.")

    async def on_disconnect(request: Request, _: Exception) -> JSONReply:
        return error_response(request.scope, 499, "The client closed the connection.")

    app.add_exception_handler(CaudalError, on_caudal_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    for gone in (ClientDisconnectedError, ClientDisconnect):
        app.add_exception_handler(gone, on_disconnect)
    app.add_exception_handler(Exception, on_unexpected)


def _kind(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 429:
            return "rate_limit_error"
        case _ if status >= 500:
            return "server_error"
        case _:
            return "invalid_request_error"
