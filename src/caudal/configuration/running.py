"""Running a server as settings have it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from caudal.configuration import pieces
from caudal.configuration.effective import EffectiveSettings
from caudal.configuration.ollama_host import ollama_host
from caudal.fleet.fleet import Fleet
from caudal.logs.setup import set_up_logs
from caudal.routes.configuration import read_routes
from caudal.routes.routed_models import RoutedModels
from caudal.routes.rules import Routes
from caudal.server import serving
from caudal.server.audit_log import AuditLog
from caudal.server.reloading import Reloader
from caudal.server.served_store import ServedStore
from caudal.server.traces import traces_to
from caudal.store import Store

logger = logging.getLogger("caudal.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that takes requests.

    Attributes:
        fleet: The models.
        routes: Names that lead to them.
        home: Where models are kept.
        address: The server's.
        ollama: Its other one, in Ollama's place.
        needs_key: Whether requests need one.
    """

    fleet: Fleet
    routes: Routes
    home: Path
    address: str
    ollama: str | None
    needs_key: bool


def run_server(
    settings: EffectiveSettings,
    *,
    fetch: Callable[[Store, str], object],
    say: Callable[[str], None],
    on_ready: Callable[[Running], None],
) -> None:
    """Serve until a signal ends it.

    Args:
        settings: They.
        fetch: Sees to it that a model is on this machine.
        say: Tells the user what happens.
        on_ready: Called once requests are taken.

    Raises:
        SettingError: A setting makes no sense, or not with the others.
        CaudalError: What they name isn't there, or can't be loaded.
    """
    given = settings.values
    named = pieces.named_models(settings)
    place = ollama_host() if given.ollama else None
    hosts = [given.host] if place is None else [given.host, place.host]
    access = pieces.access_of(settings, hosts)
    routes = read_routes(given.routes, given.alias)
    set_up_logs(given.log_format, given.log_level, show_prompts=given.log_prompts)
    certificates = pieces.certificates_of(settings)
    audit_log = None if given.audit_log is None else AuditLog(given.audit_log)
    traces = traces_to(given.otlp_endpoint)
    load = pieces.load_options(settings, named)
    serving_options = pieces.serving_options(settings)
    adapters = pieces.adapter_paths(settings, named)
    store = Store()
    for name in named:
        fetch(store, name)
    catalogue = pieces.catalogue_of(settings, named, store, serving_options, adapters)
    fleet = Fleet(catalogue, pieces.launcher_of(settings), pieces.fleet_options(settings, load))
    models = RoutedModels(fleet, routes)
    reloader = Reloader()
    if given.api_keys is not None and access.keys is not None:
        reloader.add("keys", access.keys.reload)
    sock = serving.listen(given.host, given.port)
    ollama_sock = None
    if place is not None:
        ollama_sock = serving.listen(
            place.host, place.port, choose="OLLAMA_HOST, or stop Ollama", where="OLLAMA_HOST"
        )
    scheme = "http" if certificates is None else "https"
    running = Running(
        fleet=fleet,
        routes=routes,
        home=store.home,
        address=_url(scheme, *sock.getsockname()[:2]),
        ollama=None if ollama_sock is None else _url(scheme, *ollama_sock.getsockname()[:2]),
        needs_key=access.ring() is not None,
    )
    if named:
        say(f"Loading {' and '.join(named)} …")

    async def start() -> None:
        await models.check()
        await fleet.start(given.served_model_name[:1] or named)

    if given.log_prompts:
        logger.warning("--log-prompts: prompts and answers are written to the log")
    serving.serve(
        sock,
        models if routes else fleet,
        start,
        access=access,
        limits=pieces.limits_of(settings),
        strict_fields=given.strict_fields,
        allow_runtime_lora=given.allow_runtime_lora,
        ollama=ollama_sock,
        batch_home=pieces.batch_home(settings, store),
        store=ServedStore(store, pieces.no_changes(settings, access, named)),
        reloader=reloader,
        audit_log=audit_log,
        traces=traces,
        certificates=certificates,
        log_prompts=given.log_prompts,
        vllm_metrics=given.vllm_metrics,
        on_ready=lambda: on_ready(running),
    )


def _url(scheme: str, host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
