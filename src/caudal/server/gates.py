"""What is checked before a request reaches its route: is there a model, and is the body sane?"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caudal.errors import LimitError
from caudal.server.draining import Draining
from caudal.server.errors import caudal_error_response, error_response
from caudal.server.limits import ServerLimits
from caudal.server.open_paths import PROBES

BLOBS = "/api/blobs/"
"""Where files for the store are sent to."""

UPLOADS = "/v1/files"
"""Where files for batches are."""


class ReadinessGate:
    """Answers 503 on every route but the open ones and `/metrics` until the model is loaded; and to
    new work once the server is to stop.
    """

    def __init__(self, app: ASGIApp, is_ready: Callable[[], bool], draining: Draining) -> None:
        self._app = app
        self._is_ready = is_ready
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
        elif not self._is_ready():
            await _loading(scope)(scope, receive, send)
        elif not self._draining.refuses:
            self._draining.enter()
            try:
                await self._app(scope, receive, send)
            finally:
                self._draining.leave()
        elif scope["method"] == "GET":  # what there is may still be looked at
            await self._app(scope, receive, send)
        else:
            await _stopping(scope)(scope, receive, send)


def _loading(scope: Scope) -> ASGIApp:
    return error_response(
        scope,
        503,
        "The model is still loading. Retry in a moment.",
        code="model_loading",
        retry_after=1,
    )


def _stopping(scope: Scope) -> ASGIApp:
    return error_response(
        scope,
        503,
        "The server is shutting down. Retry in a moment, when another has taken its place.",
        code="server_draining",
        headers={"Connection": "close"},
        retry_after=1,
    )


class BodyLimit:
    """Answers 413 to bodies that are too large, announced or not, without reading them whole; and
    503 where all bodies under way are too large together.

    A body counts until its request is answered. Files, for the store and for batches, go to the
    disk piece by piece: they have limits of their own, and don't count.

    Args:
        app: What is behind it.
        limits: Those that hold now.
    """

    def __init__(self, app: ASGIApp, limits: Callable[[], ServerLimits]) -> None:
        self._app = app
        self._limits = limits
        self._bytes_of_all = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limits = self._limits()
        max_bytes, limit = _limit_of(scope["path"], limits)
        is_file = limit != "max_body"
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdigit() and int(announced) > max_bytes:
            error = _too_large(limit, max_bytes)
            await caudal_error_response(scope, error)(scope, receive, send)
            return
        received = 0

        async def limited_receive() -> Message:
            nonlocal received
            event = await receive()
            size = len(event.get("body", b""))
            received += size
            self._bytes_of_all += 0 if is_file else size
            if received > max_bytes:
                raise _too_large(limit, max_bytes)
            if self._bytes_of_all > limits.all_bodies_bytes:
                raise LimitError(
                    "max_bodies",
                    "The bodies of the requests under way are too large together. Retry in a "
                    "moment.",
                    status=503,
                    retry_after=1,
                )
            return event

        try:
            await self._app(scope, limited_receive, send)
        finally:
            self._bytes_of_all -= 0 if is_file else received


def _too_large(limit: str, max_bytes: int) -> LimitError:
    message = f"The body is larger than the limit of {max_bytes} bytes."
    return LimitError(limit, message, status=413)


def _limit_of(path: str, limits: ServerLimits) -> tuple[int, str]:
    """How large a body may be, and what the limit is called."""
    if path.startswith(BLOBS):
        return limits.file_bytes, "max_file"
    if path == UPLOADS:
        return limits.upload_bytes, "max_upload"
    return limits.body_bytes, "max_body"
