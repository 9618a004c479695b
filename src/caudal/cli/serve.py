"""`caudal serve`: models as a service, with OpenAI's API and Anthropic's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caudal.cli import options
from caudal.server.limits import ServerLimits

if TYPE_CHECKING:
    from caudal.backends.facts import ExecutorFacts
    from caudal.fleet.fleet import Fleet
    from caudal.models.program import Task
    from caudal.routes.rules import Routes
    from caudal.server.auth import Access
    from caudal.service.service import Service
    from caudal.workers.launcher import Launcher

_SERVER = "Where and for whom it listens"
_FLEET = "Which models are loaded"
_ANSWERS = "How answers are read"

MEMORY_SHARE = 0.9
"""Of the memory that is available at the start, what models may have by default."""


def _duration(text: str) -> float:
    from caudal.fleet.durations import keep_alive_seconds

    try:
        return keep_alive_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def serve(
    model: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names as for `caudal pull`, or paths of GGUF files or of models' folders. A "
            "named model that is not on this machine yet is fetched.  [default: all models on "
            "this machine, each loaded when it is first asked for]",
            metavar="[MODEL]...",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; 0.0.0.0 lets other machines in.", rich_help_panel=_SERVER
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 picks a free one.", rich_help_panel=_SERVER)
    ] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Name that requests use for the model; repeat it for more names.  "
            "[default: MODEL]",
            rich_help_panel=_SERVER,
            show_default=False,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="CAUDAL_API_KEY",
            help="Clients must send it, as a bearer token or x-api-key, on every route but / and "
            "/health.",
            rich_help_panel=_SERVER,
            show_default=False,
        ),
    ] = None,
    strict_fields: Annotated[
        bool,
        typer.Option(
            "--strict-fields",
            help="Refuse fields that would have no effect, and answers longer than the context has "
            "room for; by default the former are named in x-caudal-ignored, the latter end there.",
            rich_help_panel=_SERVER,
        ),
    ] = False,
    allow_request_templates: Annotated[
        bool,
        typer.Option(
            "--allow-request-templates",
            help="Requests may bring a `chat_template` of their own, which is run in a separate "
            "process, with limits of time and memory.",
            rich_help_panel=_SERVER,
        ),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name that requests may be for, besides this machine's own; repeat it for "
            "more. Of no account with --api-key.",
            rich_help_panel=_SERVER,
            show_default=False,
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Web pages that may use the server from a browser, e.g. http://localhost:3000; "
            "`*` for all. Repeat it for more.  [default: none]",
            rich_help_panel=_SERVER,
            show_default=False,
        ),
    ] = None,
    max_connections: Annotated[
        int,
        typer.Option(
            min=1,
            help="Most connections at a time. One more closes the one that has waited longest for "
            "its client.",
            rich_help_panel=_SERVER,
        ),
    ] = ServerLimits.max_connections,
    drain_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            max=86400,
            metavar="SECONDS",
            help="How long running answers may go on once the server is told to stop; a second "
            "signal ends them at once.",
            rich_help_panel=_SERVER,
        ),
    ] = ServerLimits.drain_seconds,
    keep_alive: Annotated[
        float | None,
        typer.Option(
            parser=_duration,
            metavar="DURATION",
            help="How long a model stays loaded after its last request: 5m, 300 (seconds), 0, or "
            "-1 for ever; a request's `keep_alive` goes before it.  [env var: CAUDAL_KEEP_ALIVE]  "
            "[default: 5m; for ever where MODEL is named]",
            rich_help_panel=_FLEET,
            show_default=False,
        ),
    ] = None,
    max_loaded_models: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Most models that are loaded at a time; 0 for as many as fit.  "
            "[env var: CAUDAL_MAX_LOADED_MODELS]  [default: 0]",
            rich_help_panel=_FLEET,
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            parser=options.read_size,
            metavar="SIZE",
            help="Memory that all loaded models may have together; the least recently used makes "
            "room.  [env var: CAUDAL_MEMORY]  [default: nine tenths of what is available]",
            rich_help_panel=_FLEET,
            show_default=False,
        ),
    ] = None,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process",
            help="Run the one MODEL in the server's own process, where its crash is the server's.",
            rich_help_panel=_FLEET,
        ),
    ] = False,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODEL",
            help="Another name that requests may use for a model; repeat it for more.",
            rich_help_panel=_FLEET,
            show_default=False,
        ),
    ] = None,
    routes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A TOML file of aliases, and of names that lead to one of several models by rule: "
            "docs/many-models.md.",
            rich_help_panel=_FLEET,
            show_default=False,
        ),
    ] = None,
    tool_parser: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How the model writes tool calls: hermes, llama3_json, pythonic, mistral, "
            "deepseek_v3, openai …; `auto` goes by its chat template, `none` leaves them in the "
            "text.",
            rich_help_panel=_ANSWERS,
        ),
    ] = "auto",
    reasoning_parser: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How the model marks its reasoning: think, mistral, granite, openai …; `auto` "
            "goes by its chat template, `none` leaves it in the text.",
            rich_help_panel=_ANSWERS,
        ),
    ] = "auto",
    lora: options.Lora = None,
    allow_runtime_lora: Annotated[
        bool,
        typer.Option(
            "--allow-runtime-lora",
            envvar=["CAUDAL_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"],
            help="Requests may load adapters from files of this machine, and unload them "
            "(/v1/load_lora_adapter, /v1/unload_lora_adapter).",
            rich_help_panel=_SERVER,
            show_envvar=False,
        ),
    ] = False,
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
    """Serve models over HTTP, with the APIs that OpenAI's and Anthropic's clients speak.

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

    Then point any OpenAI client at http://127.0.0.1:8000/v1, or any of Anthropic's at
    http://127.0.0.1:8000. GET /health, /metrics (Prometheus) and /openapi.json are there too;
    `caudal ps` shows what is loaded.
    """
    import logging

    from caudal.chat.dialect import REASONING_PARSERS, TOOL_PARSERS
    from caudal.cli.environment import count, count_or_default, from_environment
    from caudal.cli.pull_display import ensure_with_display
    from caudal.fleet.catalogue import Catalogue, GivenModels, StoredModels, given_offer
    from caudal.fleet.durations import FOREVER, keep_alive_seconds
    from caudal.fleet.fleet import Fleet, FleetOptions
    from caudal.loading.options import LoadOptions
    from caudal.machine import available_memory
    from caudal.routes.configuration import read_routes
    from caudal.routes.routed_models import RoutedModels
    from caudal.server import serving
    from caudal.store import Store
    from caudal.workers.launcher import ServingOptions

    for option, name, known in (
        ("--tool-parser", tool_parser, TOOL_PARSERS),
        ("--reasoning-parser", reasoning_parser, REASONING_PARSERS),
    ):
        if name not in known:
            raise typer.BadParameter(f"must be one of {', '.join(known)}", param_hint=option)
    access = _access(host, api_key, allowed_host or [], allow_origin or [])
    named = list(dict.fromkeys(model or []))
    if not all(served_model_name or [""]) if served_model_name else not all(named):
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
    catalogue: Catalogue = StoredModels(store, serving_options)
    if named:
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
    if named:
        typer.echo(f"Loading {' and '.join(named)} …")
    names = [served_model_name[0]] if served_model_name else named

    async def start() -> None:
        await models.check()
        await fleet.start(names)

    def show_banner() -> None:
        needs_key = api_key is not None
        typer.echo(_banner(fleet, given_routes, store.home, address, needs_key=needs_key))

    serving.serve(
        sock,
        models if given_routes else fleet,
        start,
        access=access,
        limits=ServerLimits(max_connections=max_connections, drain_seconds=drain_timeout),
        strict_fields=strict_fields,
        allow_runtime_lora=allow_runtime_lora,
        on_ready=show_banner,
    )
    typer.echo("Stopped.")


def _launcher(in_process: bool) -> Launcher:
    """Where models run; only where that is here is imported what they need."""
    if in_process:
        from caudal.workers.in_process import InProcessLauncher

        return InProcessLauncher()
    from caudal.workers.worker_launcher import WorkerLauncher

    return WorkerLauncher()


def _access(
    host: str, api_key: str | None, allowed_hosts: Sequence[str], origins: Sequence[str]
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
        names = own_names(host) | {checked_name(name) for name in allowed_hosts}
        option = "--allow-origin"
        checked = frozenset(map(checked_origin, origins))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    return Access(api_key, names, reaches_this_machine_only(host), checked)


def _mapped_weights(executor: ExecutorFacts) -> str:
    """Where weights are that aren't in memory of our own, and what that costs."""
    from caudal.cli.formatting import format_bytes

    mapped = f"{format_bytes(executor.weight_bytes)}, mapped from the disk"
    if not executor.disk_bytes_per_token:
        return mapped
    missing = format_bytes(executor.disk_bytes_per_token)
    if not executor.disk_rate:
        return f"{mapped}; memory is short, so a token reads {missing} of them"
    most = executor.disk_rate / executor.disk_bytes_per_token
    return (
        f"{mapped}; memory is short, so a token reads {missing} of them: at most {most:.2g} "
        f"tokens/s, as the disk gives {format_bytes(round(executor.disk_rate))}/s"
    )


def _url(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _banner(fleet: Fleet, routes: Routes, home: Path, address: str, *, needs_key: bool) -> str:
    """What is served and how, in a few lines, so that no fallback goes unnoticed."""
    if fleet.serves_one:
        [served] = fleet.services
        lines = _about_one(served)
        asked = _question(served.names[0], served.tasks)
    else:
        lines = _about_many(fleet, home)
        names = [member.name for member in fleet.members]
        asked = _question(names[0] if names else "smollm2", frozenset(("generate",)))
    for each in routes.definitions:
        lines[each.name] = f"leads to {', '.join(each.targets)}"
    lines["address"] = f"{address}/v1"
    width = max(map(len, lines))
    table = [f"  {name:<{width}}  {value}" for name, value in lines.items()]
    key = " -H 'Authorization: Bearer YOUR_KEY'" if needs_key else ""
    route, body = asked
    curl = f"curl {address}/v1/{route} -H 'Content-Type: application/json'{key} \\\n    -d '{body}'"
    return "\n".join(["", *table, "", "Try it:", "", f"  {curl}", ""])


def _question(name: str, tasks: frozenset[Task]) -> tuple[str, str]:
    """A route to try a model by, and what to ask."""
    route, rest = (
        "chat/completions",
        '"max_tokens": 100, "temperature": 0, '
        '"messages": [{"role": "user", "content": "What is gravity?"}]',
    )
    if "embed" in tasks and "generate" not in tasks:
        route, rest = "embeddings", '"input": "Who was Albert Einstein?"'
    elif "generate" not in tasks:
        route, rest = "score", '"text_1": "Who was Einstein?", "text_2": "A physicist."'
    return route, f'{{"model": "{name}", {rest}}}'


def _about_many(fleet: Fleet, home: Path) -> dict[str, str]:
    from caudal.cli.formatting import format_bytes
    from caudal.fleet.durations import FOREVER, duration_text

    names = ", ".join(member.name for member in fleet.members)
    loaded = ", ".join(member.name for member in fleet.members if member.stay is not None)
    keep = fleet.keep_alive
    return {
        "models": names or f"none yet in {home}; fetch one with: caudal pull smollm2",
        "loaded": loaded or "none; each when it is first asked for",
        "memory": f"{format_bytes(fleet.memory)} for all that are loaded at a time (--memory)",
        "stay": ("for ever" if keep == FOREVER else f"{duration_text(keep)} after the last request")
        + " (--keep-alive)",
    }


def _about_one(served: Service) -> dict[str, str]:
    from caudal.chat.dialect import NONE_KNOWN
    from caudal.cli.formatting import format_bytes

    facts, loaded, executor = served.facts, served.facts.loaded, served.facts.loaded.executor
    lines = {
        "model": f"{loaded.model}: {loaded.architecture}, {loaded.tensors_text}",
        "served as": ", ".join(served.names),
        "tokenizer": loaded.tokenizer_text,
        "computes with": f"{executor.backend} ({executor.instruction_set}), {executor.threads} "
        f"threads, activations {executor.activations}, keys and values {executor.kv_type}",
        "embeddings": loaded.embedding_text,
    }
    if served.adapters:
        lines["adapters"] = ", ".join(
            f"{each.name} (rank {each.rank}, {format_bytes(each.bytes)})"
            for each in served.adapters
        )
    if executor.weights_mapped:
        lines["weights"] = _mapped_weights(executor)
    if loaded.left_out:
        lines["left out"] = f"{', '.join(loaded.left_out)} (text is what is loaded)"
    if loaded.chat_template is not None:
        calls = f"tool calls as {facts.tool_parser}"
        if facts.tool_parser == NONE_KNOWN:
            calls = "tool calls only where they are enforced (no parser known for this template)"
        lines |= {
            "chat template": loaded.chat_template,
            "reads": f"{calls}, reasoning as {facts.reasoning_parser}",
        }
    if str(loaded.sampling):
        lines["sampling"] = f"{loaded.sampling} (recommended, where a request doesn't say)"
    memory = loaded.memory
    if memory is not None:
        sequences = memory.sequences(loaded.max_model_len)
        lines["KV memory"] = (
            f"{format_bytes(memory.kv.bytes)}: {memory.kv.tokens} tokens, or "
            f"{sequences:.1f} sequences of the longest, {loaded.max_model_len}"
        )
        for pool in memory.windows:
            lines[f"windows of {pool.window}"] = (
                f"{format_bytes(pool.bytes)}: {pool.sequences(loaded.max_model_len):.1f} of them"
            )
        if memory.states is not None:
            lines["recurrent states"] = (
                f"{format_bytes(memory.states.bytes)}: of {memory.states.num_slots} sequences "
                "and snapshots"
            )
    else:
        lines["longest input"] = f"{loaded.max_model_len} tokens"
    return lines
