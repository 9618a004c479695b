"""What the OpenAPI document says of answers, which the routes' signatures do not show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fastapi.routing import APIRoute, APIRouter
from pydantic import TypeAdapter

from caudal.server.body import BodyReader
from caudal.server.encoding import encode_json
from caudal.server.open_paths import OPEN_PATHS


def _nullable(kind: str) -> dict[str, Any]:
    return {"anyOf": [{"type": kind}, {"type": "null"}]}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _failures(body: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """Every failure of a route. FastAPI's own 422, which the server never sends, makes way."""
    content = {"application/json": {"schema": body}}
    return {
        "4XX": {"description": "The request was refused.", "content": content},
        "5XX": {"description": "The server could not answer.", "content": content},
    }


_TEXT = {"type": "string"}

OPENAI_FAILURES = _failures(
    _object(
        error=_object(
            message=_TEXT, type=_TEXT, param=_nullable("string"), code=_nullable("string")
        )
    )
)
"""Responses of routes that use `caudal.server.errors.envelope`."""

ANTHROPIC_FAILURES = _failures(
    _object(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT), request_id=_TEXT)
)
"""Responses of routes that use `caudal.server.anthropic.errors.error_body`."""

OLLAMA_FAILURES = _failures(_object(error=_TEXT))
"""Responses of routes that use `caudal.server.ollama.errors.error_body`."""

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The whole answer, or with `stream` its events.",
        # OpenAPI 3.1 has no schema for a sequence of events.
        "content": {"text/event-stream": {}},
    }
}
"""Responses of routes that stream where the request says so."""

STREAMED_LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer piece by piece, or without `stream` as a whole.",
        "content": {"application/x-ndjson": {}},
    }
}
"""Responses of routes that stream JSON lines unless the request says otherwise."""


def _unavailable(description: str, *statuses: str) -> dict[int | str, dict[str, Any]]:
    schema = _object(status={"type": "string", "enum": list(statuses)})
    content = {"application/json": {"schema": schema}}
    return {503: {"description": description, "content": content}}


NOT_HEALTHY = _unavailable(
    "The model is still loading, or the engine has failed.", "loading", "failed"
)
"""Responses of `/health`."""

NOT_READY = _unavailable("No requests are taken.", "loading", "failed", "draining")
"""Responses of `/ready`."""

TEXTS_OR_TOKENS: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            "minItems": 1,
        },
    ]
}
"""Schema of a field that holds one or several prompts, each a text or token ids."""


def with_bodies(document: dict[str, Any], routers: Sequence[APIRouter]) -> dict[str, Any]:
    """The document, with the bodies that routes read by themselves (`caudal.server.body`)."""
    readers = {
        (route.path_format, method.lower()): reader
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute)
        for dependency in route.dependant.dependencies
        if isinstance(reader := dependency.call, BodyReader)
        for method in route.methods or ()
    }
    schemas, definitions = TypeAdapter.json_schemas(
        [(place, "validation", TypeAdapter(reader.kind)) for place, reader in readers.items()],
        ref_template="#/components/schemas/{model}",
    )
    for (path, method), reader in readers.items():
        document["paths"][path][method]["requestBody"] = {
            "required": reader.is_required,
            "content": {"application/json": {"schema": schemas[(path, method), "validation"]}},
        }
    document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
    return document


def with_keys(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a server that needs a key, which may be sent in either way."""
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{"bearer": []}, {"header": []}]
    for path in OPEN_PATHS & document["paths"].keys():
        for operation in document["paths"][path].values():
            operation["security"] = []
    return document


class OpenAPIDocument:
    """The whole document, made when it is first asked for: off the event loop, for it takes long.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self._making: asyncio.Task[bytes] | None = None

    async def encoded(self) -> bytes:
        """The document as JSON."""
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(lambda: encode_json(self._make())))
        return await asyncio.shield(self._making)
