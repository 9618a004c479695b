"""What the server is given, made of settings and checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from caudal.batches.options import BatchOptions
from caudal.chat.prompt_presets import chosen
from caudal.configuration.effective import EffectiveSettings, GivenModel
from caudal.configuration.key_sources import ConfiguredKeys, configured_keys, key_sources
from caudal.configuration.models import ModelOptions, given_models, model_options
from caudal.configuration.ollama_host import OllamaHost, ollama_host
from caudal.configuration.problems import Problems
from caudal.fleet.options import FleetOptions
from caudal.loading.options import LoadOptions
from caudal.machine import available_memory
from caudal.routes.configuration import read_routes
from caudal.routes.rules import Routes
from caudal.server.auth import Access
from caudal.server.batch_state import BatchHome
from caudal.server.certificates import CertificateError, CertificateFiles, Certificates
from caudal.server.cors import checked_origin
from caudal.server.hosts import checked_name, own_names, reaches_this_machine_only
from caudal.server.limits import ServerLimits
from caudal.server.proxies import TrustedProxies, checked_proxy
from caudal.store import Store
from caudal.tenants.ring import KeyRing
from caudal.workers.launcher import Launcher, ServingOptions

MEMORY_SHARE = 0.9
"""Of the memory that is available at the start, what models may have by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """See the module.

    Attributes:
        access: Who may use the server.
        keys: The keys of the configuration file, where there is one.
        limits: What clients may cost.
        models: The models that are named; none for all of the store.
        options: How these run, by their own names.
        general: How others do.
        routes: Names that lead to them.
        ollama: Where Ollama would listen, where that is to be the server's too.
        certificates: What connections are encrypted with; None: they aren't.
        root_path: The path below which a proxy has the server; empty for none.
        normalise_prompts: Presets by which conversations are normalised.
    """

    access: Access
    keys: ConfiguredKeys | None
    limits: ServerLimits
    models: Sequence[GivenModel]
    options: Mapping[str, ModelOptions]
    general: ModelOptions
    routes: Routes
    ollama: OllamaHost | None
    certificates: Certificates | None
    root_path: str
    normalise_prompts: Sequence[str]


def pieces_of(settings: EffectiveSettings) -> Pieces:
    """Everything.

    Raises:
        ConfigurationError: A setting makes no sense, or not with others; tells of all that don't.
    """
    problems = Problems()
    place: OllamaHost | None = None
    models: Sequence[GivenModel] = ()
    general, options = ModelOptions(LoadOptions(), ServingOptions()), {}
    access, keys, routes = Access(), None, Routes()
    with problems:
        models = given_models(settings)
    with problems:
        place = ollama_host() if settings.values.ollama else None
    with problems:
        keys = configured_keys(settings)
        hosts = [settings.values.host, *([] if place is None else [place.host])]
        access = access_of(settings, hosts, keys)
    certificates, root_path, presets = None, "", list[str]()
    with problems:
        certificates = certificates_of(settings)
    with problems:
        root_path = root_path_of(settings)
    with problems.of(partial(settings.error, "normalise_prompts")):
        presets += chosen(settings.values.normalise_prompts)
    with problems:
        routes = routes_of(settings)
    with problems:
        general = model_options(settings, of_one=settings.file is None and len(models) == 1)
    for model in models:
        with problems:
            of_one = "max_model_len" in model.values
            of_one |= settings.file is None and len(models) == 1
            options[model.own_name] = model_options(settings.of_model(model), of_one=of_one)
    problems.raise_all()
    return Pieces(
        access=access,
        keys=keys,
        limits=limits_of(settings),
        models=models,
        options=options,
        general=general,
        routes=routes,
        ollama=place,
        certificates=certificates,
        root_path=root_path,
        normalise_prompts=presets,
    )


def access_of(
    settings: EffectiveSettings, hosts: Sequence[str], keys: ConfiguredKeys | None = None
) -> Access:
    """Who may use the server; an option that would let in others than was meant is an error.

    Args:
        settings: They.
        hosts: Where it listens.
        keys: Those of the configuration file.

    Raises:
        ConfigurationError: There is such an option.
    """
    given = settings.values
    problems = Problems()
    names = frozenset[str]().union(*map(own_names, hosts))
    origins = frozenset[str]()
    proxies = []
    ring = None
    with problems:
        sources = key_sources(settings, keys)
        ring = KeyRing(sources) if sources else None
    with problems.of(partial(settings.error, "allowed_host")):
        names |= frozenset(map(checked_name, given.allowed_host))
    with problems.of(partial(settings.error, "allow_origin")):
        origins = frozenset(map(checked_origin, given.allow_origin))
    with problems.of(partial(settings.error, "trusted_proxy")):
        proxies = [checked_proxy(each) for each in given.trusted_proxy]
    problems.raise_all()
    return Access(
        given.api_key,
        names,
        all(map(reaches_this_machine_only, hosts)),
        origins,
        keys=ring,
        open_metrics=given.open_metrics,
        proxies=TrustedProxies(proxies) if proxies else None,
    )


def root_path_of(settings: EffectiveSettings) -> str:
    """Below which path a proxy has the server; raises `SettingError` for what is no path."""
    given = settings.values.root_path.rstrip("/")
    if given and (not given.startswith("/") or not given.isprintable() or set(given) & set("?# ")):
        raise settings.error("root_path", "must be a path that begins with /")
    return given


def certificates_of(settings: EffectiveSettings) -> Certificates | None:
    """What connections are encrypted with; None: they aren't.

    Raises:
        SettingError: There is a key, but no certificate; or they can't be used.
    """
    given = settings.values
    if given.ssl_certfile is None:
        for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
            if name in settings.origins and getattr(given, name) is not None:
                raise settings.error(name, "needs a certificate, too (--ssl-certfile)")
        return None
    files = CertificateFiles(
        certificate=given.ssl_certfile,
        key=given.ssl_keyfile,
        password=given.ssl_keyfile_password,
        client_authorities=given.ssl_ca_certs,
    )
    try:
        return Certificates(files)
    except CertificateError as error:
        names = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
        name = next(name for name in names if getattr(given, name) == error.file)
        raise settings.error(name, str(error)) from error


def limits_of(settings: EffectiveSettings) -> ServerLimits:
    """What clients may cost."""
    given = settings.values
    body = ServerLimits.body_bytes if given.max_body is None else given.max_body
    return ServerLimits(
        body_bytes=body,
        all_bodies_bytes=max(ServerLimits.all_bodies_bytes, body),
        max_connections=given.max_connections,
        connections_per_address=given.max_connections_per_address,
        header_seconds=given.header_timeout,
        body_seconds=given.body_timeout,
        unread_seconds=given.unread_timeout,
        max_prompt_tokens=given.max_prompt_tokens,
        max_n=given.max_n,
        max_output_tokens=given.max_output_tokens,
        notice_seconds=given.drain_notice,
        drain_seconds=given.drain_timeout,
        upload_bytes=given.max_upload_size or ServerLimits.upload_bytes,
    )


def batch_home(settings: EffectiveSettings, store: Store) -> BatchHome:
    """Where files and batches are kept, and what they may take."""
    given = settings.values
    options = BatchOptions(concurrency=given.batch_concurrency)
    if given.max_files_size is not None:
        options = replace(options, max_bytes=given.max_files_size)
    return BatchHome(store.home, options)


def routes_of(settings: EffectiveSettings) -> Routes:
    """Names that lead to models; those of the configuration file give way to others.

    Raises:
        ConfigurationError: Two have one name, or one leads to itself.
    """
    given = settings.values
    others = () if settings.file is None else settings.file.routes
    return read_routes(given.routes, given.alias, others)


def fleet_options(settings: EffectiveSettings, load: LoadOptions) -> FleetOptions:
    """How models come and go.

    Args:
        settings: They.
        load: How models run.
    """
    given = settings.values
    options = FleetOptions(
        memory=int(available_memory() * MEMORY_SHARE) if given.memory is None else given.memory,
        load=load,
        max_loaded=given.max_loaded_models or None,
    )
    if given.keep_alive is not None:
        options = replace(options, keep_alive=given.keep_alive)
    if given.max_queue is not None:
        options = replace(options, max_waiting=given.max_queue)
    return options


def launcher_of(settings: EffectiveSettings) -> Launcher:
    """Where models run; only where that is here is imported what they need."""
    if settings.values.in_process:
        from caudal.workers.in_process import InProcessLauncher

        return InProcessLauncher()
    from caudal.workers.worker_launcher import WorkerLauncher

    return WorkerLauncher(log_prompts=settings.values.log_prompts)


def no_changes(
    settings: EffectiveSettings, access: Access, models: Sequence[GivenModel]
) -> str | None:
    """Why clients may not change the store; None: they may."""
    allowed = settings.values.store_changes
    if allowed is False:
        return "This server was started with --no-store-changes."
    if models:
        return (
            "This server serves the models that it was started with. Start it without naming any "
            "to have clients pull, make and delete models."
        )
    if allowed is None and access.ring() is None and not access.local_only:
        return (
            "Others than this machine reach this server, and it has no key: so they may not change "
            "its models. Start it with --api-key, or with --store-changes."
        )
    return None
