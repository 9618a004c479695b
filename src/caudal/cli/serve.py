"""`caudal serve`: models as a service, with OpenAI's API and Anthropic's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from caudal.cli import options, serve_options
from caudal.server.limits import ServerLimits

if TYPE_CHECKING:
    from caudal.server.auth import Access
    from caudal.workers.launcher import Launcher

MEMORY_SHARE = 0.9
"""Of the memory that is available at the start, what models may have by default."""


def serve(
    model: serve_options.Models = None,
    host: serve_options.Host = "127.0.0.1",
    port: serve_options.Port = 8000,
    ollama: serve_options.Ollama = False,
    served_model_name: serve_options.ServedModelName = None,
    api_key: serve_options.ApiKey = None,
    strict_fields: serve_options.StrictFields = False,
    allow_request_templates: serve_options.AllowRequestTemplates = False,
    allowed_host: serve_options.AllowedHost = None,
    allow_origin: serve_options.AllowOrigin = None,
    max_connections: serve_options.MaxConnections = ServerLimits.max_connections,
    drain_timeout: serve_options.DrainTimeout = ServerLimits.drain_seconds,
    keep_alive: serve_options.KeepAlive = None,
    max_loaded_models: serve_options.MaxLoadedModels = None,
    memory: serve_options.Memory = None,
    in_process: serve_options.InProcess = False,
    alias: serve_options.Alias = None,
    routes: serve_options.RoutesFile = None,
    tool_parser: serve_options.ToolParser = "auto",
    reasoning_parser: serve_options.ReasoningParser = "auto",
    lora: options.Lora = None,
    allow_runtime_lora: serve_options.AllowRuntimeLora = False,
    store_changes: serve_options.StoreChanges = None,
    max_model_len: options.MaxModelLen = None,
    chat_template: options.ChatTemplate = None,
    generation_config: options.GenerationConfig = "auto",
    kv_memory: options.PoolSize = None,
    kv_type: options.KvType = "f16",
    activations: options.Activations = "auto",
    weights: options.WeightsPlace = "auto",
    packed_size: options.PackedSize = None,
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    no_prefix_cache: options.NoPrefixCache = False,
    schedule: options.Schedule = "prefix",
    ageing: options.Ageing = None,
    batching: options.Batching = "continuous",
    preferred_batch_size: options.PreferredBatchSize = None,
    max_queue_delay: options.MaxQueueDelay = None,
    max_queue: options.MaxQueue = None,
    first_token_timeout: options.FirstTokenTimeout = None,
    request_timeout: options.RequestTimeout = None,
    embedding_batch_size: options.EmbeddingBatchSize = None,
    embedding_queue_delay: options.EmbeddingQueueDelay = None,
) -> None:
    """Serve models over HTTP, with the APIs that OpenAI's, Anthropic's and Ollama's clients speak.

    The quickest start, on this machine alone:

        caudal serve smollm2

    All models that have been fetched, each loaded when a request first names it:

        caudal serve

    For others on the network, with a key, and with room for long conversations:

        caudal serve smollm2 --host 0.0.0.0 --api-key SECRET --kv-memory 4GiB

    Any GGUF file, under a name of your own:

        caudal serve ./model.gguf --served-model-name house-model

    A model for embeddings:

        caudal serve minilm

    With adapters, which requests name as their model:

        caudal serve smollm2 --lora sql=./sql-lora --lora poet=./poet.gguf

    In Ollama's place, for programs that look for it on port 11434:

        caudal serve --ollama

    Then point any OpenAI client at http://127.0.0.1:8000/v1, or any of Anthropic's at
    http://127.0.0.1:8000. GET /health, /metrics (Prometheus) and /openapi.json are there too;
    `caudal ps` shows what is loaded.
    """
    import logging

    from caudal.chat.dialect import REASONING_PARSERS, TOOL_PARSERS
    from caudal.cli.banner import banner
    from caudal.cli.environment import count, count_or_default, flag, from_environment
    from caudal.cli.ollama_host import ollama_host
    from caudal.cli.pull_display import ensure_with_display
    from caudal.fleet.catalogue import Catalogue, GivenModels, StoredModels, given_offer
    from caudal.fleet.durations import FOREVER, keep_alive_seconds
    from caudal.fleet.fleet import Fleet
    from caudal.fleet.options import FleetOptions
    from caudal.loading.options import LoadOptions
    from caudal.machine import available_memory
    from caudal.routes.configuration import read_routes
    from caudal.routes.routed_models import RoutedModels
    from caudal.server import serving
    from caudal.server.served_store import ServedStore
    from caudal.store import Store
    from caudal.workers.launcher import ServingOptions

    for option, name, known in (
        ("--tool-parser", tool_parser, TOOL_PARSERS),
        ("--reasoning-parser", reasoning_parser, REASONING_PARSERS),
    ):
        if name not in known:
            raise typer.BadParameter(f"must be one of {', '.join(known)}", param_hint=option)
    place = ollama_host() if ollama else None
    hosts = [host] if place is None else [host, place.host]
    access = _access(hosts, api_key, allowed_host or [], allow_origin or [])
    named = list(dict.fromkeys(model or []))
    if not all(named):
        raise typer.BadParameter("must not be empty", param_hint="MODEL")
    if not all(served_model_name or ()):
        raise typer.BadParameter("must not be empty", param_hint="--served-model-name")
    if served_model_name and len(named) != 1:
        raise typer.BadParameter(
            "goes with one MODEL; several have their own names", param_hint="--served-model-name"
        )
    if in_process and len(named) != 1:
        raise typer.BadParameter("goes with one MODEL", param_hint="--in-process")
    if max_num_seqs is None:
        max_num_seqs = from_environment("NUM_PARALLEL", count_or_default)
    if max_queue is None:
        max_queue = from_environment("MAX_QUEUE", count)
    length_from_environment = from_environment("CONTEXT_LENGTH", count_or_default)
    if keep_alive is None:
        keep_alive = from_environment("KEEP_ALIVE", keep_alive_seconds)
    if max_loaded_models is None:
        max_loaded_models = from_environment("MAX_LOADED_MODELS", count)
    if memory is None:
        memory = from_environment("MEMORY", options.size_of, ("CAUDAL_",))
    if not allow_runtime_lora:
        prefixes = ("CAUDAL_", "VLLM_")
        allow_runtime_lora = bool(from_environment("ALLOW_RUNTIME_LORA_UPDATING", flag, prefixes))
    given_routes = read_routes(routes, alias or ())
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("caudal").setLevel(logging.INFO)
    load_options = LoadOptions(
        max_model_len=max_model_len or length_from_environment,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_memory=kv_memory,
        kv_type=kv_type,
        activations=activations,
        weights=weights,
        packed_size=packed_size,
        threads=threads,
        prefix_cache=not no_prefix_cache,
        schedule=schedule,
        ageing=ageing,
        batching=batching,
        preferred_batch_size=preferred_batch_size,
        max_queue_delay=max_queue_delay,
        max_queue=max_queue,
        first_token_timeout=first_token_timeout,
        request_timeout=request_timeout,
        embedding_batch_size=embedding_batch_size,
        embedding_queue_delay=embedding_queue_delay,
        chat_template=chat_template,
        generation_config=generation_config,
        for_all=len(named) != 1 or (max_model_len is None and length_from_environment is not None),
    )
    serving_options = ServingOptions(
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        allow_request_templates=allow_request_templates,
        strict=strict_fields,
    )
    adapters = options.adapter_paths(lora)
    if adapters and len(named) != 1:
        raise typer.BadParameter("goes with one MODEL", param_hint="--lora")
    if taken := adapters.keys() & set(served_model_name or named):
        raise typer.BadParameter(f"{min(taken)!r} is the model's own name", param_hint="--lora")
    store = Store()
    for name in named:
        ensure_with_display(store, name)
    catalogue: Catalogue
    if not named:
        catalogue = StoredModels(store, serving_options)
    else:
        catalogue = GivenModels(
            [
                given_offer(
                    name,
                    names=served_model_name or (),
                    adapters=adapters,
                    store=store,
                    serving=serving_options,
                    pinned=len(named) == 1,
                    keep_alive=FOREVER if keep_alive is None else keep_alive,
                )
                for name in named
            ]
        )
    fleet_options = FleetOptions(
        memory=int(available_memory() * MEMORY_SHARE) if memory is None else memory,
        load=load_options,
        max_loaded=max_loaded_models or None,
    )
    if keep_alive is not None:
        fleet_options = replace(fleet_options, keep_alive=keep_alive)
    if max_queue is not None:
        fleet_options = replace(fleet_options, max_waiting=max_queue)
    fleet = Fleet(catalogue, _launcher(in_process), fleet_options)
    models = RoutedModels(fleet, given_routes)
    sock = serving.listen(host, port)
    address = _url(*sock.getsockname()[:2])
    ollama_sock = None
    if place is not None:
        ollama_sock = serving.listen(
            place.host, place.port, choose="OLLAMA_HOST, or stop Ollama", where="OLLAMA_HOST"
        )
    ollama_address = None if ollama_sock is None else _url(*ollama_sock.getsockname()[:2])
    if named:
        typer.echo(f"Loading {' and '.join(named)} …")
    names = [served_model_name[0]] if served_model_name else named

    async def start() -> None:
        await models.check()
        await fleet.start(names)

    def show_banner() -> None:
        needs_key = api_key is not None
        said = banner(
            fleet,
            given_routes,
            store.home,
            address,
            ollama=ollama_address,
            needs_key=needs_key,
        )
        typer.echo(said)

    serving.serve(
        sock,
        models if given_routes else fleet,
        start,
        access=access,
        limits=ServerLimits(max_connections=max_connections, drain_seconds=drain_timeout),
        strict_fields=strict_fields,
        allow_runtime_lora=allow_runtime_lora,
        ollama=ollama_sock,
        store=ServedStore(store, _no_changes(access, named, allowed=store_changes)),
        on_ready=show_banner,
    )
    typer.echo("Stopped.")


def _no_changes(access: Access, named: Sequence[str], *, allowed: bool | None) -> str | None:
    """Why clients may not change the store; None: they may."""
    if allowed is False:
        return "This server was started with --no-store-changes."
    if named:
        return (
            "This server serves the models that it was started with. Start it without naming any "
            "to have clients pull, make and delete models."
        )
    if allowed is None and access.api_key is None and not access.local_only:
        return (
            "Others than this machine reach this server, and it has no key: so they may not change "
            "its models. Start it with --api-key, or with --store-changes."
        )
    return None


def _launcher(in_process: bool) -> Launcher:
    """Where models run; only where that is here is imported what they need."""
    if in_process:
        from caudal.workers.in_process import InProcessLauncher

        return InProcessLauncher()
    from caudal.workers.worker_launcher import WorkerLauncher

    return WorkerLauncher()


def _access(
    hosts: Sequence[str], api_key: str | None, allowed_hosts: Sequence[str], origins: Sequence[str]
) -> Access:
    """Who may use the server; an option that would let in others than was meant is an error."""
    from caudal.server.auth import Access, checked_key
    from caudal.server.cors import checked_origin
    from caudal.server.hosts import checked_name, own_names, reaches_this_machine_only

    option = "--api-key (CAUDAL_API_KEY)"
    try:
        # Typer takes an empty variable for none; whoever set it meant there to be a key.
        key = os.environ.get("CAUDAL_API_KEY") if api_key is None else api_key
        if key is not None:
            checked_key(key)
        option = "--allowed-host"
        names = frozenset(checked_name(name) for name in allowed_hosts).union(
            *map(own_names, hosts)
        )
        option = "--allow-origin"
        checked = frozenset(map(checked_origin, origins))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    return Access(api_key, names, all(map(reaches_this_machine_only, hosts)), checked)


def _url(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
