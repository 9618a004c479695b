"""Running a server as settings have it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caudal.configuration import pieces
from caudal.configuration.effective import EffectiveSettings
from caudal.configuration.live import LiveConfiguration
from caudal.configuration.models import catalogue_of
from caudal.fleet.fleet import Fleet
from caudal.logs.setup import set_up_logs
from caudal.routes.routed_models import RoutedModels
from caudal.routes.rules import Routes
from caudal.server import serving
from caudal.server.audit_log import AuditLog
from caudal.server.limits import ChangingLimits
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
    options: Mapping[str, Any],
    *,
    fetch: Callable[[Store, str], object],
    say: Callable[[str], None],
    on_ready: Callable[[Running], None],
) -> None:
    """Serve until a signal ends it.

    Args:
        settings: They.
        options: What of them a configuration file can't change: see `effective_settings`.
        fetch: Sees to it that a model is on this machine.
        say: Tells the user what happens.
        on_ready: Called once requests are taken.

    Raises:
        ConfigurationError: Settings make no sense, or not with each other.
        CaudalError: What they name isn't there, or can't be loaded.
    """
    given = settings.values
    made = pieces.pieces_of(settings)
    set_up_logs(given.log_format, given.log_level, show_prompts=given.log_prompts)
    certificates = made.certificates
    audit_log = None if given.audit_log is None else AuditLog(given.audit_log)
    traces = traces_to(given.otlp_endpoint)
    store = Store()
    for model in made.models:
        fetch(store, model.name)
    catalogue = catalogue_of(settings, made.models, made.options, made.general, store)
    fleet_options = pieces.fleet_options(settings, made.general.load)
    fleet = Fleet(catalogue, pieces.launcher_of(settings), fleet_options)
    models = RoutedModels(fleet, made.routes)
    sock = serving.listen(given.host, given.port)
    ollama_sock = None
    if made.ollama is not None:
        ollama_sock = serving.listen(
            made.ollama.host,
            made.ollama.port,
            choose="OLLAMA_HOST, or stop Ollama",
            where="OLLAMA_HOST",
        )
    scheme = "http" if certificates is None else "https"
    running = Running(
        fleet=fleet,
        routes=made.routes,
        home=store.home,
        address=_url(scheme, *sock.getsockname()[:2]),
        ollama=None if ollama_sock is None else _url(scheme, *ollama_sock.getsockname()[:2]),
        needs_key=made.access.ring() is not None,
    )
    named = [model.name for model in made.models]
    if named:
        say(f"Loading {' and '.join(named)} …")
    served = ServedStore(store, pieces.no_changes(settings, made.access, made.models))
    reloader, changing = Reloader(), ChangingLimits()
    if given.api_keys is not None and made.access.keys is not None:
        reloader.add("keys", made.access.keys.reload)
    if settings.file is not None:
        live = LiveConfiguration(
            options=options,
            settings=settings,
            pieces=made,
            fetch=Store.ensure,
            fleet=fleet,
            routed=models,
            served=served,
            changing=changing,
        )
        reloader.add(str(settings.file.path), live.reload)

    async def start() -> None:
        await models.check()
        await fleet.start([model.own_name for model in made.models if model.preload])

    if given.log_prompts:
        logger.warning("--log-prompts: prompts and answers are written to the log")
    serving.serve(
        sock,
        models if made.routes or settings.file is not None else fleet,
        start,
        access=made.access,
        limits=made.limits,
        strict_fields=given.strict_fields,
        allow_runtime_lora=given.allow_runtime_lora,
        ollama=ollama_sock,
        batch_home=pieces.batch_home(settings, store),
        store=served,
        reloader=reloader,
        changing=changing,
        audit_log=audit_log,
        traces=traces,
        certificates=certificates,
        log_prompts=given.log_prompts,
        normalise_prompts=made.normalise_prompts,
        root_path=made.root_path,
        vllm_metrics=given.vllm_metrics,
        on_ready=lambda: on_ready(running),
    )


def _url(scheme: str, host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
