"""What the server is given, made of settings and checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from caudal.batches.options import BatchOptions
from caudal.chat.dialect import REASONING_PARSERS, TOOL_PARSERS
from caudal.configuration.chat_template_file import read_chat_template
from caudal.configuration.effective import EffectiveSettings
from caudal.configuration.key_sources import key_sources
from caudal.errors import ParameterError
from caudal.fleet.catalogue import Catalogue, GivenModels, StoredModels, given_offer
from caudal.fleet.durations import FOREVER
from caudal.fleet.options import FleetOptions
from caudal.loading.adapters import parse_adapter
from caudal.loading.options import LoadOptions
from caudal.machine import available_memory
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


def named_models(settings: EffectiveSettings) -> Sequence[str]:
    """The models that are served, each once; none for all of the store.

    Raises:
        SettingError: A name is none, or what goes with one model is said of several.
    """
    given = settings.values
    named = list(dict.fromkeys(given.model))
    if not all(named):
        raise settings.error("model", "must not be empty")
    if not all(given.served_model_name):
        raise settings.error("served_model_name", "must not be empty")
    if given.served_model_name and len(named) != 1:
        raise settings.error(
            "served_model_name", "goes with one MODEL; several have their own names"
        )
    for name in ("in_process", "lora"):
        if getattr(given, name) and len(named) != 1:
            raise settings.error(name, "goes with one MODEL")
    return named


def access_of(settings: EffectiveSettings, hosts: Sequence[str]) -> Access:
    """Who may use the server; an option that would let in others than was meant is an error.

    Args:
        settings: They.
        hosts: Where it listens.

    Raises:
        SettingError: There is such an option.
        ConfigurationError: Keys can't be read, or contradict each other.
    """
    given = settings.values
    sources = key_sources(settings)
    name = "allowed_host"
    try:
        names = frozenset(map(checked_name, given.allowed_host)).union(*map(own_names, hosts))
        name = "allow_origin"
        origins = frozenset(map(checked_origin, given.allow_origin))
        name = "trusted_proxy"
        proxies = [checked_proxy(each) for each in given.trusted_proxy]
    except ValueError as error:
        raise settings.error(name, str(error)) from error
    return Access(
        given.api_key,
        names,
        all(map(reaches_this_machine_only, hosts)),
        origins,
        keys=KeyRing(sources) if sources else None,
        open_metrics=given.open_metrics,
        proxies=TrustedProxies(proxies) if proxies else None,
    )


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
        raise settings.error("ssl_certfile", str(error)) from error


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


def serving_options(settings: EffectiveSettings) -> ServingOptions:
    """How answers are read, and which requests are taken.

    Raises:
        SettingError: There is no such parser.
    """
    given = settings.values
    for name, known in (("tool_parser", TOOL_PARSERS), ("reasoning_parser", REASONING_PARSERS)):
        if getattr(given, name) not in known:
            raise settings.error(name, f"must be one of {', '.join(known)}")
    return ServingOptions(
        tool_parser=given.tool_parser,
        reasoning_parser=given.reasoning_parser,
        allow_request_templates=given.allow_request_templates,
        strict=given.strict_fields,
    )


def load_options(settings: EffectiveSettings, named: Sequence[str]) -> LoadOptions:
    """How models run.

    Args:
        settings: They.
        named: The models, if any are named.

    Raises:
        SettingError: The chat template can't be used.
        ParameterError: Something else makes no sense.
    """
    given = settings.values
    template = None
    if given.chat_template is not None:
        try:
            template = read_chat_template(given.chat_template)
        except ValueError as error:
            raise settings.error("chat_template", str(error)) from error
    length = settings.origins.get("max_model_len")
    return LoadOptions(
        max_model_len=given.max_model_len,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        kv_memory=given.kv_memory,
        kv_type=given.kv_type,
        activations=given.activations,
        weights=given.weights,
        packed_size=given.packed_size,
        threads=given.threads,
        prefix_cache=not given.no_prefix_cache,
        schedule=given.schedule,
        ageing=given.ageing,
        batching=given.batching,
        preferred_batch_size=given.preferred_batch_size,
        max_queue_delay=given.max_queue_delay,
        max_queue=given.max_queue,
        first_token_timeout=given.first_token_timeout,
        request_timeout=given.request_timeout,
        embedding_batch_size=given.embedding_batch_size,
        embedding_queue_delay=given.embedding_queue_delay,
        chat_template=template,
        generation_config=given.generation_config,
        for_all=len(named) != 1 or (length is not None and length.kind == "environment"),
    )


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


def adapter_paths(settings: EffectiveSettings, named: Sequence[str]) -> Mapping[str, str]:
    """The adapters that the model begins with, by name.

    Args:
        settings: They.
        named: The models.

    Raises:
        SettingError: One is none, or has a name that is another's.
    """
    paths: dict[str, str] = {}
    for text in settings.values.lora:
        try:
            name, path = parse_adapter(text)
        except ParameterError as error:
            raise settings.error("lora", str(error)) from error
        if name in paths:
            raise settings.error("lora", f"there are two adapters {name!r}")
        paths[name] = path
    if taken := paths.keys() & set(settings.values.served_model_name or named):
        raise settings.error("lora", f"{min(taken)!r} is the model's own name")
    return paths


def catalogue_of(
    settings: EffectiveSettings,
    named: Sequence[str],
    store: Store,
    serving: ServingOptions,
    adapters: Mapping[str, str],
) -> Catalogue:
    """Which models there are.

    Args:
        settings: They.
        named: The models, which are on this machine; none for all of the store.
        store: Where they are.
        serving: How their answers are read.
        adapters: Those that the one model begins with.

    Raises:
        ModelNotFoundError, StoreError: One isn't here, or is damaged.
    """
    if not named:
        return StoredModels(store, serving)
    given = settings.values
    return GivenModels(
        [
            given_offer(
                name,
                names=given.served_model_name,
                adapters=adapters,
                store=store,
                serving=serving,
                pinned=len(named) == 1,
                keep_alive=FOREVER if given.keep_alive is None else given.keep_alive,
            )
            for name in named
        ]
    )


def launcher_of(settings: EffectiveSettings) -> Launcher:
    """Where models run; only where that is here is imported what they need."""
    if settings.values.in_process:
        from caudal.workers.in_process import InProcessLauncher

        return InProcessLauncher()
    from caudal.workers.worker_launcher import WorkerLauncher

    return WorkerLauncher(log_prompts=settings.values.log_prompts)


def no_changes(settings: EffectiveSettings, access: Access, named: Sequence[str]) -> str | None:
    """Why clients may not change the store; None: they may."""
    allowed = settings.values.store_changes
    if allowed is False:
        return "This server was started with --no-store-changes."
    if named:
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
