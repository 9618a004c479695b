"""The application: routes, and the layers that every request passes on its way to one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Receive, Scope, Send

from caudal import __version__
from caudal.server import about, prefix_cache, ps
from caudal.server.anthropic import batches as message_batches
from caudal.server.anthropic import messages
from caudal.server.auth import Access, KeyAuth
from caudal.server.batch_lines import LineCalls
from caudal.server.batch_state import BatchHome, make_service
from caudal.server.cors import Cors
from caudal.server.draining import Draining
from caudal.server.encoding import JSONReply
from caudal.server.errors import install_error_handlers
from caudal.server.gates import BodyLimit, ReadinessGate
from caudal.server.hosts import HostCheck
from caudal.server.ignored import ignored_fields
from caudal.server.limits import ServerLimits
from caudal.server.llama_cpp import about as llama_cpp_about
from caudal.server.llama_cpp import adapters as llama_cpp_adapters
from caudal.server.llama_cpp import completion as llama_cpp_completion
from caudal.server.llama_cpp import loading as llama_cpp_loading
from caudal.server.metrics import scraped
from caudal.server.normalised import normalised_prompts
from caudal.server.ollama import about as ollama_about
from caudal.server.ollama import blobs as ollama_blobs
from caudal.server.ollama import changes as ollama_changes
from caudal.server.ollama import chat as ollama_chat
from caudal.server.ollama import embed as ollama_embed
from caudal.server.ollama import generate as ollama_generate
from caudal.server.ollama import listing as ollama_listing
from caudal.server.openai import (
    batches,
    chat,
    completions,
    conversations,
    embeddings,
    files,
    lora,
    rerank,
    responses,
    tokenize,
)
from caudal.server.openai import (
    models as models_routes,
)
from caudal.server.openai.reasoning_seal import ReasoningSeal
from caudal.server.openai.responses_state import ResponsesState
from caudal.server.openapi import (
    ANTHROPIC_FAILURES,
    NOT_HEALTHY,
    NOT_READY,
    OLLAMA_FAILURES,
    OPENAI_FAILURES,
    OpenAPIDocument,
    with_bodies,
    with_keys,
)
from caudal.server.paths import canonical_path
from caudal.server.proxies import Proxied
from caudal.server.quotas import Settling
from caudal.server.recording import Recording
from caudal.server.records import ASKED_METHOD, Records, RecordSink
from caudal.server.request_ids import RequestIds
from caudal.server.request_log import RequestLog
from caudal.server.revoking import Revocable, Revocation
from caudal.server.said import SaidHeaders
from caudal.server.served_store import ServedStore
from caudal.server.server_metrics import ServerMetrics
from caudal.server.streaming import SERVER_SEND
from caudal.server.tenancy import check_admin, scope_within
from caudal.server.waiting_for_models import ModelsOfRequests
from caudal.service.models import Models
from caudal.tenants.quotas import Quotas

_ROUTERS = (
    (chat.router, OPENAI_FAILURES),
    (completions.router, OPENAI_FAILURES),
    (responses.router, OPENAI_FAILURES),
    (messages.router, ANTHROPIC_FAILURES),
    (message_batches.router, ANTHROPIC_FAILURES),
    (embeddings.router, OPENAI_FAILURES),
    (rerank.router, OPENAI_FAILURES),
    (conversations.router, OPENAI_FAILURES),
    (files.router, OPENAI_FAILURES),
    (batches.router, OPENAI_FAILURES),
    (ollama_chat.router, OLLAMA_FAILURES),
    (ollama_generate.router, OLLAMA_FAILURES),
    (ollama_embed.router, OLLAMA_FAILURES),
    (llama_cpp_completion.router, OPENAI_FAILURES),
    (models_routes.router, OPENAI_FAILURES),
    (tokenize.router, OPENAI_FAILURES),
    (about.router, OPENAI_FAILURES),
    (llama_cpp_about.router, OPENAI_FAILURES),
    (llama_cpp_adapters.router, OPENAI_FAILURES),
    (lora.router, OPENAI_FAILURES),
    (llama_cpp_loading.router, OPENAI_FAILURES),
    (ps.router, OPENAI_FAILURES),
    (prefix_cache.router, OPENAI_FAILURES),
    (ollama_about.router, OLLAMA_FAILURES),
    (ollama_listing.router, OLLAMA_FAILURES),
    (ollama_changes.router, OLLAMA_FAILURES),
    (ollama_blobs.router, OLLAMA_FAILURES),
)
"""Routers, and how they fail; those first that are asked most, for routes are looked through in
order.
"""


class _App(FastAPI):
    """Finds routes by their other names, documents bodies as routes read them, and has layers
    around FastAPI's own outermost, which answers what nobody else has caught.
    """

    def __init__(self, access: Access, records: Records, below: str, **options: Any) -> None:
        super().__init__(**options)
        self._below = below
        self._access = access
        self._records = records

    def build_middleware_stack(self) -> ASGIApp:
        """The layers, outermost first."""
        stack: ASGIApp = RequestIds(super().build_middleware_stack())
        if self._access.origins:
            stack = Cors(stack, self._access.origins)
        routes = [route for router, _ in _ROUTERS for route in router.routes]
        stack = Recording(stack, self._records, [*self.routes, *routes])
        proxies = self._access.proxies
        return stack if proxies is None else Proxied(stack, proxies)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        if self.openapi_schema is None:
            document = with_bodies(super().openapi(), [router for router, _ in _ROUTERS])
            needs_key = self._access.ring() is not None
            self.openapi_schema = with_keys(document) if needs_key else document
        return self.openapi_schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SERVER_SEND] = send  # see `EventStream`
        if scope["type"] == "http":
            if self._below:
                scope["root_path"] = self._below
            scope["path"] = canonical_path(scope["path"])
            if scope["method"] == "HEAD":
                # The server, which keeps its own scope, leaves the body out.
                scope = {**scope, "method": "GET", ASKED_METHOD: "HEAD"}
        await super().__call__(scope, receive, send)


def create_app(
    models: Models,
    *,
    access: Access | None = None,
    limits: ServerLimits | None = None,
    strict_fields: bool = False,
    allow_runtime_lora: bool = False,
    ollama_port: int | None = None,
    store: ServedStore | None = None,
    sinks: Iterable[RecordSink] = (),
    vllm_metrics: bool = False,
    log_prompts: bool = False,
    normalise_prompts: Sequence[str] = (),
    root_path: str = "",
    batch_home: BatchHome | None = None,
    draining: Draining | None = None,
) -> FastAPI:
    """Build the application.

    Args:
        models: The models; until they are ready every route but `/health` is 503.
        access: Who may use it; by default everybody on this machine.
        limits: What a request may cost.
        strict_fields: Refuse requests with fields that would have no effect.
        allow_runtime_lora: Requests may load adapters from this machine's files, and unload them.
        ollama_port: Where the server stands in for Ollama, and says what clients look for there.
        store: Where the models are, for those who manage them.
        sinks: Who is told of requests that have ended; `app.state.records` takes more.
        vllm_metrics: `/metrics` has models' figures under vLLM's names, too.
        log_prompts: Whether prompts and answers go to the log.
        normalise_prompts: Presets by which conversations are normalised.
        root_path: Below which path a proxy has it, for URLs in answers.
        batch_home: Where files and batches are kept; None: nowhere. Whoever serves the application
            starts and stops what then is at `state.batches`.
        draining: How far the server is on its way out.
    """
    draining = Draining() if draining is None else draining
    access = access or Access()
    limits = limits or ServerLimits()
    records = Records(sinks)
    app = _App(
        access,
        records,
        root_path,
        title="Caudal",
        version=__version__,
        # The interactive pages load scripts from a public CDN; the schema itself stays available.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # see below
        # A redirect would lead to whatever host the request names.
        redirect_slashes=False,
    )
    app.state.models = models
    app.state.limits = limits
    app.state.records = records
    app.state.log_prompts = log_prompts
    app.state.normalise_prompts = normalise_prompts
    app.state.strict_fields = strict_fields
    app.state.allow_runtime_lora = allow_runtime_lora
    app.state.store = store
    counts = app.state.metrics = ServerMetrics(lambda name: name in models.names)
    app.state.quotas = Quotas()
    records.add(Settling())
    app.state.origins = frozenset(access.origins)
    app.state.large_bodies = asyncio.Semaphore(1)
    records.add(counts)
    records.add(RequestLog())
    app.state.ignored_fields = ignored_fields(counts.registry)
    app.state.normalised_prompts = normalised_prompts(counts.registry)
    app.state.responses = ResponsesState(seal=ReasoningSeal(access.api_key or ""))

    # Before the others: these are asked for all the time.
    @app.get("/", response_class=PlainTextResponse)
    async def root(request: Request) -> Response:
        """Says that there is a server; needs no key, and no model to be loaded."""
        asked_at = request.scope.get("server")
        if ollama_port is not None and asked_at is not None and asked_at[1] == ollama_port:
            return PlainTextResponse("Ollama is running")
        return PlainTextResponse("Caudal is running. Its APIs are under /v1 and /api.\n")

    @app.get("/health", responses=NOT_HEALTHY)
    async def health() -> Response:
        """Whether the server does what it should; needs no key, and no model to be loaded."""
        return _reply(_status(models))

    @app.get("/ready", responses=NOT_READY)
    async def ready() -> Response:
        """Whether requests are taken; needs no key, and no model to be loaded."""
        return _reply("draining" if draining.begun else _status(models))

    @app.get("/metrics", response_class=PlainTextResponse, responses=OPENAI_FAILURES)
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus: of all models, or of the one that `?model=` names."""
        if not access.open_metrics:
            check_admin(request)
        name = request.query_params.get("model")
        figures = await scraped(models, counts.registry, name, vllm=vllm_metrics)
        return Response(figures, media_type=CONTENT_TYPE_LATEST)

    for router, failures in _ROUTERS:
        app.include_router(router, responses=failures)

    document = OpenAPIDocument(app.openapi)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        """The schema of the API."""
        return Response(await document.encoded(), media_type="application/json")

    install_error_handlers(app)
    keys = access.ring()
    if keys is not None:
        revocation = Revocation(keys)
        records.add(revocation)
        app.add_middleware(Revocable, revocation=revocation)
    app.add_middleware(SaidHeaders)
    app.add_middleware(ModelsOfRequests)
    app.add_middleware(
        BodyLimit,
        limits=lambda: app.state.limits,  # they may change
    )
    app.add_middleware(ReadinessGate, is_ready=lambda: models.ready, draining=draining)
    app.state.batches = None
    if batch_home is not None:
        calls = LineCalls(app, lambda tenant: scope_within(keys, tenant))
        app.state.batches = make_service(batch_home, calls, counts.registry)
    if keys is not None:
        app.add_middleware(
            KeyAuth, keys=keys, quotas=app.state.quotas, open_metrics=access.open_metrics
        )
    else:
        app.add_middleware(HostCheck, names=access.host_names, local_only=access.local_only)
    return app


def _status(models: Models) -> str:
    """`ok`, `loading` or `failed`."""
    if not models.ready:
        return "loading"
    return "ok" if models.healthy else "failed"


def _reply(status: str) -> JSONReply:
    """What is said of a status. A failure, only, doesn't pass by itself."""
    headers = None if status in ("ok", "failed") else {"Retry-After": "1"}
    return JSONReply({"status": status}, 200 if status == "ok" else 503, headers)
