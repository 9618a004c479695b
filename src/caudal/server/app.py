"""The application: routes, and the layers that every request passes on its way to one."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import Receive, Scope, Send

from caudal import __version__
from caudal.server import about
from caudal.server.anthropic import messages
from caudal.server.auth import ApiKeyAuth
from caudal.server.encoding import JSONReply
from caudal.server.errors import install_error_handlers
from caudal.server.limits import BodyLimit, ReadinessGate
from caudal.server.llama_cpp import about as llama_cpp_about
from caudal.server.openai import (
    chat,
    completions,
    embeddings,
    models,
    rerank,
    responses,
    tokenize,
)
from caudal.server.openai.responses_store import ResponseStore
from caudal.server.openapi import ANTHROPIC_FAILURES, NOT_HEALTHY, OPENAI_FAILURES
from caudal.server.paths import canonical_path
from caudal.server.state import ModelSlot, needs, served_model
from caudal.server.streaming import SERVER_SEND


class _App(FastAPI):
    """Tells an `EventStream` the server's own `send`, and finds routes by their other names."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SERVER_SEND] = send
        if scope["type"] == "http":
            scope["path"] = canonical_path(scope["path"])
            if scope["method"] == "HEAD":
                # The server, which keeps its own scope, leaves the body out.
                scope = {**scope, "method": "GET"}
        await super().__call__(scope, receive, send)


def create_app(slot: ModelSlot, *, api_key: str | None = None) -> FastAPI:
    """Build the application.

    Args:
        slot: Holds the model, now or later; until it is filled every route but `/health` is 503.
        api_key: If given, every route but `/health` needs it, as a bearer token or as `x-api-key`.
    """
    app = _App(
        title="Caudal",
        version=__version__,
        # The interactive pages load scripts from a public CDN; the schema itself stays available.
        docs_url=None,
        redoc_url=None,
        # A web page can make its visitor's browser post to this machine unasked, but not as JSON.
        strict_content_type=True,
    )
    app.state.model_slot = slot
    app.state.response_store = ResponseStore()
    for module in (models, tokenize, about, llama_cpp_about):
        app.include_router(module.router, responses=OPENAI_FAILURES)
    generates, embeds, scores = ([needs(task)] for task in ("generate", "embed", "score"))
    for module in (chat, completions, responses):
        app.include_router(module.router, dependencies=generates, responses=OPENAI_FAILURES)
    app.include_router(messages.router, dependencies=generates, responses=ANTHROPIC_FAILURES)
    app.include_router(embeddings.router, dependencies=embeds, responses=OPENAI_FAILURES)
    app.include_router(rerank.router, dependencies=scores, responses=OPENAI_FAILURES)

    @app.get("/health", responses=NOT_HEALTHY)
    async def health() -> Response:
        """Whether requests can be answered; needs no key, and no model to be loaded."""
        if not slot.ready:
            return JSONReply({"status": "loading"}, 503, {"Retry-After": "1"})
        if not slot.model.engine.healthy:
            return JSONReply({"status": "failed"}, 503)
        return JSONReply({"status": "ok"})

    @app.get("/metrics", response_class=PlainTextResponse, responses=OPENAI_FAILURES)
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus."""
        model = served_model(request)
        return Response(model.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    install_error_handlers(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(ReadinessGate, is_ready=lambda: slot.ready)
    if api_key is not None:
        app.add_middleware(ApiKeyAuth, api_key=api_key)
    return app
