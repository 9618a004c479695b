"""Every failure in OpenAI's envelope, `{"error": {"message", "type", "param", "code"}}`, or in
Anthropic's on Anthropic's routes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from caudal.errors import (
    CaudalError,
    ContextOverflowError,
    EngineDeadError,
    InputTooLongError,
    ParameterError,
    QueueFullError,
    RequestFailedError,
    RequestTimeoutError,
    TemplateError,
)
from caudal.server.anthropic import errors as anthropic
from caudal.server.encoding import JSONReply
from caudal.server.openai.strict import UnsupportedFieldError

logger = logging.getLogger("caudal.server")


class UnknownModelError(CaudalError):
    """A request names a model that this server does not serve."""

    def __init__(self, name: str, served: Sequence[str]) -> None:
        super().__init__(
            f"The model {name!r} does not exist. This server serves: {', '.join(served)}."
        )


class UnknownResponseError(CaudalError):
    """There is no such response: there never was, or it was deleted, or had to make room."""

    def __init__(self, identity: str) -> None:
        super().__init__(
            f"There is no response {identity!r:.80}. The server keeps the latest ones only, in "
            "memory, and none that was made with store false."
        )


class UnsupportedTaskError(CaudalError):
    """A route is for something that the model can't do."""

    def __init__(self, name: str, task: str, tasks: Collection[str]) -> None:
        wanted = {"generate": "generate text", "embed": "make embeddings", "score": "score texts"}
        routes = {
            "generate": "/v1/chat/completions and /v1/completions",
            "embed": "/v1/embeddings",
            "score": "/v1/rerank and /v1/score",
        }
        offered = ", ".join(routes[each] for each in sorted(tasks))
        super().__init__(f"The model {name!r} can't {wanted[task]}. It serves {offered}.")


class ClientDisconnectedError(Exception):
    """The client went away before its answer was complete; nobody reads what is sent."""


def envelope(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error's body, also sent as an event where a stream fails half-way."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(
    scope: Scope,
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONReply:
    """An error's response; the envelope's type follows from the status, as at OpenAI.

    Args:
        scope: Of the request; its path decides whose envelope it is.
        status: HTTP's.
        message: What went wrong.
        param: The field to blame.
        code: OpenAI's, where it has one.
        headers: To be sent along.
    """
    if anthropic.speaks_anthropic(scope):
        status = anthropic.anthropic_status(status)
        if param is not None and param not in message:
            message = f"{param}: {message}"
        return JSONReply(
            anthropic.error_body(scope, status, message),
            status,
            {**(headers or {}), "request-id": anthropic.request_id(scope)},
        )
    body = envelope(message, _kind(status), param=param, code=code)
    return JSONReply(body, status, dict(headers or {}))


def describe(error: CaudalError) -> tuple[int, str | None, str | None]:
    """Returns an error's HTTP status, the field to blame and OpenAI's code, where it has one."""
    match error:
        case ContextOverflowError() | InputTooLongError():
            return 400, error.param, "context_length_exceeded"
        case ParameterError():
            return 400, error.param, None
        case TemplateError():
            return 400, "messages", None
        case UnknownModelError():
            return 404, "model", "model_not_found"
        case UnsupportedTaskError():
            return 400, "model", "unsupported_task"
        case UnknownResponseError():
            return 404, None, "response_not_found"
        case QueueFullError():
            return 429, None, "queue_full"
        case RequestTimeoutError():
            return 504, None, "timeout"
        case RequestFailedError():
            return 500, None, None
        case EngineDeadError():
            return 503, None, None
        case _:
            return 500, None, None


def caudal_error_response(scope: Scope, error: CaudalError) -> JSONReply:
    """The response to an error raised before the first byte of an answer."""
    status, param, code = describe(error)
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, QueueFullError) else None
    return error_response(scope, status, str(error), param=param, code=code, headers=headers)


def error_event(error: Exception) -> dict[str, Any]:
    """The event that ends a stream which fails after its first token."""
    if isinstance(error, CaudalError):
        status, param, code = describe(error)
        return envelope(str(error), _kind(status), param=param, code=code)
    return envelope("Internal server error.", "server_error")


def install_error_handlers(app: FastAPI) -> None:
    """Give every failure of every route the envelope."""

    async def on_caudal_error(request: Request, error: Exception) -> JSONReply:
        assert isinstance(error, CaudalError)
        return caudal_error_response(request.scope, error)

    async def on_validation_error(request: Request, error: Exception) -> JSONReply:
        assert isinstance(error, RequestValidationError)
        content_type = request.headers.get("content-type", "")
        if isinstance(error.body, bytes) and "json" not in content_type:
            return error_response(
                request.scope, 400, "Send a JSON body with Content-Type: application/json."
            )
        message, param = _explain(error.errors())
        return error_response(request.scope, 400, message, param=param)

    async def on_http_exception(request: Request, error: Exception) -> JSONReply:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code == 400 and error.__cause__ is not None:  # only bodies end up here
            message = f"The body is not valid JSON: {_parse_failure(error.__cause__)}."
        elif error.status_code == 404:
            message = f"There is no route {request.method} {request.url.path}."
        elif error.status_code == 405:
            message = f"{request.url.path} does not accept {request.method}."
        return error_response(request.scope, error.status_code, message, headers=error.headers)

    async def on_unexpected(request: Request, _: Exception) -> JSONReply:
        # Starlette logs the traceback.
        return error_response(request.scope, 500, "Internal server error.")

    async def on_disconnect(request: Request, _: Exception) -> JSONReply:
        return error_response(request.scope, 499, "The client closed the connection.")

    app.add_exception_handler(CaudalError, on_caudal_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnectedError, on_disconnect)
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


def _parse_failure(cause: BaseException) -> str:
    """Why a body could not be read, where the parser does not say it itself."""
    match cause:
        case RecursionError():
            return "it is nested too deeply"
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case _:
            return "it has an integer of too many digits"


def _explain(errors: Sequence[Any]) -> tuple[str, str | None]:
    """Returns one sentence, and the field, for pydantic's list of errors."""
    # A union reports every branch; the branch that got furthest is the one that was meant.
    error = max(errors, key=lambda item: len(_path(item["loc"])))
    path = _path(error["loc"])
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, UnsupportedFieldError):
        field = _join([*path, cause.field])
        return f"{field} is not supported by this server.", field
    field = _join(path)
    match error["type"]:
        case "json_invalid":
            where = error["loc"][-1]
            return f"The body is not valid JSON: {cause or 'syntax error'} (at {where}).", None
        case "extra_forbidden":
            return f"Unknown field: {field}.", field
        case "missing":
            if not field:
                return "The request needs a JSON body.", None
            return f"{field} is required.", field
        case _:
            alternatives = [_sentence(item) for item in errors if _path(item["loc"]) == path]
            what = " or ".join(dict.fromkeys(alternatives))
            return f"{field or 'body'}: {what}.", field or None


def _path(location: Sequence[str | int]) -> list[str | int]:
    """A location in the body, without pydantic's names for the branches of a union."""
    return [
        part
        for part in location[1:]
        if isinstance(part, int) or not (part in {"str", "int", "float"} or "[" in part)
    ]


def _join(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _sentence(error: Any) -> str:
    """What is wrong with a value, in words that know JSON and not Python."""
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "input should be an object"
    message: str = error["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
