"""Which web pages may use the server: CORS, for the origins that `--allow-origin` names.

Starlette has a middleware for this too. It lists request headers one by one, though, and what
Anthropic's and OpenAI's clients send in a browser are families: `anthropic-*`, `x-stainless-*`.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caudal.server.errors import error_response

ANY = "*"

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")

_REQUEST_HEADERS = re.compile(
    r"accept|authorization|content-type|x-api-key|api-key|x-request-id|idempotency-key|user-agent"
    r"|anthropic-[a-z0-9-]+|openai-[a-z0-9-]+|x-stainless-[a-z0-9-]+"
)
"""What pages may send: keys, ids, and what the official clients say of themselves."""

_EXPOSED = (
    b"x-request-id, request-id, x-caudal-ignored, x-caudal-normalised, x-caudal-model"
    b", x-caudal-limit, retry-after"
    b", x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests"
    b", x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
    b", anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining"
    b", anthropic-ratelimit-requests-reset, anthropic-ratelimit-tokens-limit"
    b", anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset"
)

_MAX_AGE = "600"
"""Seconds for which a browser need not ask again."""


def checked_origin(text: str) -> str:
    """An origin as browsers send it, or `*`.

    Raises:
        ValueError: It is something else, such as a URL with a path.
    """
    origin = text.lower().removesuffix("/")
    if origin != ANY and _ORIGIN.fullmatch(origin) is None:
        raise ValueError(
            f"{text!r} is no origin: it must be a scheme, a host and maybe a port, such as "
            "https://example.org or http://localhost:3000, or * for all",
        )
    return origin


class Cors:
    """ASGI middleware around everything that answers, so that pages can read failures too.

    Args:
        app: What answers.
        origins: As `checked_origin` returns them.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        asked = headers.get("access-control-request-method")
        more = [(b"vary", b"Origin")]
        if origin is not None and (ANY in self._origins or origin.lower() in self._origins):
            more += [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", _EXPOSED),
            ]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *more]
            await send(message)

        app = self._app
        if scope["method"] == "OPTIONS" and origin is not None and asked is not None:
            if len(more) == 1:
                app = error_response(
                    scope,
                    403,
                    f"Pages of {origin!r:.200} may not use this server. To let them, start it "
                    "with --allow-origin ORIGIN.",
                    code="origin_not_allowed",
                )
            else:
                app = _preflight(headers, asked)
        await app(scope, receive, send_with_headers)


def is_of_foreign_page(headers: Headers, origins: Collection[str]) -> bool:
    """Whether a request is of a web page that isn't the server's own, nor one that may use it.

    Args:
        headers: The request's.
        origins: As `Cors` has them.
    """
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    own = origin.partition("://")[2] == headers.get("host")
    return not own and ANY not in origins and origin.lower() not in origins


def _preflight(headers: Headers, method: str) -> Response:
    """What a page may send. Needs no key: a browser asks this of its own accord."""
    asked = headers.get("access-control-request-headers", "").split(",")
    names = [name.strip() for name in asked]
    answer = {
        # Pages need no leave for HEAD.
        "access-control-allow-methods": "GET, POST, DELETE" if method == "DELETE" else "GET, POST",
        "access-control-max-age": _MAX_AGE,
    }
    allowed = [name for name in names if _REQUEST_HEADERS.fullmatch(name.lower())]
    if allowed:
        answer["access-control-allow-headers"] = ", ".join(allowed)
    if headers.get("access-control-request-private-network") == "true":
        answer["access-control-allow-private-network"] = "true"
    return Response(status_code=200, headers=answer)
