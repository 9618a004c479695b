"""Bodies of requests: read, parsed and validated in one place."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Generic, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from caudal.reading.explain import explain_errors
from caudal.reading.fields import FieldReading, ignored_fields
from caudal.server.body_error import BodyError
from caudal.server.bounded_schema import bounded_validator
from caudal.server.ignored import note_ignored
from caudal.server.json_bounds import find_excess
from caudal.server.ollama.errors import speaks_ollama

T = TypeVar("T")

INLINE_BODY_BYTES = 64 * 1024
"""Larger bodies are read in a thread, so that they do not delay the streams of others."""


ARRIVED = "caudal.arrived"
"""Where a scope has when its request had arrived as a whole, on the monotonic clock."""


class BodyReader(Generic[T]):
    """Reads a route's body as `kind`; a FastAPI dependency.

    Attributes:
        kind: A `RequestObject`, or a union of such.
        is_required: Whether there must be one.
    """

    is_required = True

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._validator = bounded_validator(kind)

    async def __call__(self, request: Request) -> T:
        """Read the body.

        Raises:
            BodyError: It is no JSON, or not what the route takes.
        """
        if not (_is_json(request.headers.get("content-type", "")) or _may_be_untyped(request)):
            raise BodyError("Send a JSON body with Content-Type: application/json.")
        # Not `request.body()`, which keeps it.
        data = b"".join([piece async for piece in request.stream()])
        request.scope[ARRIVED] = time.monotonic()
        reading = FieldReading(strict=request.app.state.strict_fields)
        if len(data) <= INLINE_BODY_BYTES:
            body = self._read(data, reading)
        else:
            # One at a time: threads that parse keep the event loop from its turn.
            async with request.app.state.large_bodies:
                body = await asyncio.to_thread(self._read, data, reading)
        if reading.found_ignored and isinstance(body, BaseModel):
            note_ignored(request, ignored_fields(body))
        return body

    def _read(self, data: bytes, reading: FieldReading) -> T:
        try:
            body: T = self._validator.validate_python(_parse(data), context=reading)
            return body
        except ValidationError as error:
            raise BodyError(*explain_errors(error.errors(include_url=False))) from None


class OptionalBodyReader(BodyReader[T]):
    """The same, of a route that takes no body for an empty one."""

    is_required = False

    async def __call__(self, request: Request) -> T:
        """Read the body, if there is one. A web page's must say that it is JSON: see below."""
        headers = request.headers
        is_empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        if is_empty and not _is_from_page(request):
            body: T = self.kind()
            return body
        return await super().__call__(request)


def json_body(kind: Any) -> Any:
    """What a route's parameter is annotated with whose argument is the request's body."""
    return Depends(BodyReader(kind))


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def _may_be_untyped(request: Request) -> bool:
    """Whether a body is JSON though it doesn't say so, as Ollama's users write it with curl.

    A web page must say so: only then does a browser ask whether the page may.
    """
    return speaks_ollama(request.scope) and not _is_from_page(request)


def _is_from_page(request: Request) -> bool:
    return "origin" in request.headers or "sec-fetch-site" in request.headers


def _parse(data: bytes) -> Any:
    if not data:
        raise BodyError("The request needs a JSON body.")
    if (excess := find_excess(data)) is not None:
        raise BodyError(excess)
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise BodyError(f"The body is not valid JSON: {error.msg} (at {error.pos}).") from None
    except RecursionError:
        raise BodyError("The body is not valid JSON: it is nested too deeply.") from None
    except UnicodeDecodeError:
        raise BodyError("The body is not valid JSON: it is not UTF-8.") from None
    except ValueError:
        raise BodyError(
            "The body is not valid JSON: it has an integer of too many digits."
        ) from None
