"""All settings of `caudal serve`.

A field here is an option of the command line by the same name, with its help, and belongs to the
table that its class is. Who adds one does nothing else for that: see `setting`.
"""

from __future__ import annotations

import functools
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from caudal.backends.native import options as native
from caudal.batches.options import BatchOptions
from caudal.configuration.environment import count, count_or_default, flag, ours_or_ollamas
from caudal.configuration.setting import DURATION, SIZE, setting, setting_of
from caudal.engine import config
from caudal.logs.setup import LogFormat, LogLevel
from caudal.server.limits import ServerLimits


def _engine(limit: str) -> str:
    """The engine's own default; None reaches the engine as just that."""
    [value] = [field.default for field in fields(config.EngineConfig) if field.name == limit]
    return str(value)


@dataclass(frozen=True, kw_only=True)
class _Server:
    """Where and for whom it listens."""

    table: ClassVar[str] = "server"

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 lets other machines in.")
    port: int = setting(8000, "0 picks a free one.", least=0, most=65535)
    ollama: bool = setting(
        False, "Listen where Ollama does as well: on 127.0.0.1:11434, or where OLLAMA_HOST says."
    )
    served_model_name: tuple[str, ...] = setting(
        (),
        "Name that requests use for the model; repeat it for more names.",
        "MODEL",
        in_file=False,
    )
    api_key: str | None = setting(
        None,
        "Clients must send it, as a bearer token or x-api-key, on every route but those that say "
        "whether there is a server. It may do everything; others: --api-keys.",
        variables=("CAUDAL_API_KEY",),
        exact=True,
        secret=True,
    )
    api_keys: Path | None = setting(
        None,
        "A file of keys, which `caudal keys` makes: who may use which models, and how much. It is "
        "followed while the server runs. CAUDAL_API_KEYS has keys themselves, between commas.",
        variables=("CAUDAL_API_KEYS_FILE",),
        read_variable=Path,
        placeholder="FILE",
    )
    open_metrics: bool = setting(
        False,
        "/metrics needs no key; otherwise it needs one with admin rights, where there are any.",
    )
    trusted_proxy: tuple[str, ...] = setting(
        (),
        "A proxy that is believed when it says whom a request comes from (X-Forwarded-For, "
        "X-Forwarded-Proto, Forwarded); repeat it for more.",
        "none",
        placeholder="ADDRESS|NETWORK",
    )
    root_path: str = setting(
        "",
        "The path below which a proxy has the server, which it strips: /llm, say.",
        "none",
        placeholder="PATH",
    )
    ssl_certfile: Path | None = setting(
        None,
        "Speak HTTPS, with the certificate in this file (PEM), and behind it those that lead to "
        "its authority. SIGHUP reads it anew.",
        "none: plain HTTP",
        placeholder="FILE",
    )
    ssl_keyfile: Path | None = setting(
        None, "The certificate's key (PEM).", "in the certificate's file", placeholder="FILE"
    )
    ssl_keyfile_password: str | None = setting(
        None,
        "What the key is encrypted with.",
        variables=("CAUDAL_SSL_KEYFILE_PASSWORD",),
        exact=True,
        placeholder="WORD",
        secret=True,
    )
    ssl_ca_certs: Path | None = setting(
        None,
        "Clients must have a certificate that one of the authorities in this file has signed.",
        "clients need none",
        placeholder="FILE",
    )
    strict_fields: bool = setting(
        False,
        "Refuse fields that would have no effect, and answers longer than the context has room "
        "for; by default the former are named in x-caudal-ignored, the latter end there.",
    )
    allow_request_templates: bool = setting(
        False,
        "Requests may bring a `chat_template` of their own, which is run in a separate process, "
        "with limits of time and memory.",
        per_model=True,
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        "Host name that requests may be for, besides this machine's own; repeat it for more. Of no "
        "account with --api-key.",
        placeholder="NAME",
    )
    allow_origin: tuple[str, ...] = setting(
        (),
        "Web pages that may use the server from a browser, e.g. http://localhost:3000; `*` for "
        "all. Repeat it for more.",
        "none",
        placeholder="ORIGIN",
    )
    vllm_metrics: bool = setting(
        False,
        "/metrics has models' figures under vLLM's names, too, for gateways that choose a server "
        "by them.",
    )
    store_changes: bool | None = setting(
        None,
        "Whether clients may pull, make, copy and delete models, by Ollama's API.",
        "where no MODEL is named and there is a key, or only this machine reaches the server",
        flag="--store-changes/--no-store-changes",
        live=True,
    )
    allow_runtime_lora: bool = setting(
        False,
        "Requests may load adapters from files of this machine, and unload them "
        "(/v1/load_lora_adapter, /v1/unload_lora_adapter).",
        variables=("CAUDAL_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        read_variable=flag,
    )


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """What clients may cost."""

    table: ClassVar[str] = "limits"

    max_connections: int = setting(
        ServerLimits.max_connections,
        "Most connections at a time. One more closes the one that has waited longest for its "
        "client.",
        least=1,
        live=True,
    )
    max_connections_per_address: int | None = setting(
        None,
        "Most connections of one address at a time; one more is answered 429. Those of a "
        "--trusted-proxy don't count.",
        "as many as there may be",
        least=1,
        live=True,
    )
    header_timeout: float = setting(
        ServerLimits.header_seconds,
        "How long a request's line and headers may take to come.",
        placeholder="SECONDS",
        least=0.1,
        most=86400,
        live=True,
    )
    body_timeout: float = setting(
        ServerLimits.body_seconds,
        "How long a request's body may pause.",
        placeholder="SECONDS",
        least=0.1,
        most=86400,
        live=True,
    )
    unread_timeout: float = setting(
        ServerLimits.unread_seconds,
        "How long an answer may wait for its reader; then the connection is closed, and the "
        "request given up.",
        placeholder="SECONDS",
        least=0.1,
        most=86400,
        live=True,
    )
    max_body: int | None = setting(
        None,
        "Largest body of a request, e.g. 64MiB; beyond it the answer is 413.",
        "32MiB",
        notation=SIZE,
        live=True,
    )
    max_prompt_tokens: int | None = setting(
        None,
        "Most tokens of a request's prompts together; beyond it the answer is 400.",
        "what the model has room for",
        least=1,
        live=True,
    )
    max_n: int | None = setting(
        None,
        "Most answers that one request may ask for, to all its prompts together.",
        "as many as run at once",
        least=1,
        live=True,
    )
    max_output_tokens: int | None = setting(
        None,
        "Most tokens of an answer; one that asks for more, or doesn't say, ends there.",
        "what the model has room for",
        least=1,
        live=True,
    )
    drain_notice: float = setting(
        ServerLimits.notice_seconds,
        "How long requests are still taken after SIGTERM, while /ready says 503 already: until "
        "load balancers have noticed.",
        placeholder="SECONDS",
        least=0,
        most=86400,
        live=True,
    )
    drain_timeout: float = setting(
        ServerLimits.drain_seconds,
        "How long running answers may go on once the server is told to stop; a second signal ends "
        "them at once.",
        placeholder="SECONDS",
        least=0,
        most=86400,
        live=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Logs:
    """What it writes down."""

    table: ClassVar[str] = "logs"

    log_format: LogFormat = setting(
        "text", "How the log is written, to standard error: `text`, or `json`, an object a line."
    )
    log_level: LogLevel = setting("info", "The least that is written.", live=True)
    log_prompts: bool = setting(
        False,
        "Write prompts and answers to the log, too; by default nothing that is written there "
        "quotes a request.",
    )
    audit_log: str | None = setting(
        None,
        "A file to append a line of JSON to for each request: who asked which model when, and what "
        "it took, without any content. `-` for the standard output. SIGHUP opens it anew.",
        "none",
        placeholder="FILE",
    )
    otlp_endpoint: str | None = setting(
        None,
        "An OpenTelemetry collector to send a span of each request to, such as "
        "http://127.0.0.1:4318; OTEL_... variables are heeded. Needs caudal[otel].",
        "what OTEL_EXPORTER_OTLP_ENDPOINT says, else none",
        placeholder="URL",
    )


@dataclass(frozen=True, kw_only=True)
class _Batches:
    """Files and batches of clients."""

    table: ClassVar[str] = "batches"

    batch_concurrency: int = setting(
        BatchOptions().concurrency,
        "Most lines of batches that are being answered at a time.",
        least=1,
        most=4096,
    )
    max_upload_size: int | None = setting(
        None, "Largest file that clients may send.", "512MiB", notation=SIZE
    )
    max_files_size: int | None = setting(
        None,
        "Most space on the disk for what clients send and batches write.",
        "10GiB",
        notation=SIZE,
    )


@dataclass(frozen=True, kw_only=True)
class _Fleet:
    """Which models are loaded."""

    table: ClassVar[str] = "fleet"

    model: tuple[str, ...] = setting(
        (),
        "Names as for `caudal pull`, or paths of GGUF files or of models' folders. A named model "
        "that is not on this machine yet is fetched.",
        "all models on this machine, each loaded when it is first asked for",
        in_file=False,
    )
    keep_alive: float | None = setting(
        None,
        "How long a model stays loaded after its last request: 5m, 300 (seconds), 0, or -1 for "
        "ever; a request's `keep_alive` goes before it.",
        "5m; for ever where MODEL is named",
        notation=DURATION,
        variables=ours_or_ollamas("KEEP_ALIVE"),
        live=True,
    )
    max_loaded_models: int | None = setting(
        None,
        "Most models that are loaded at a time; 0 for as many as fit.",
        "0",
        least=0,
        variables=ours_or_ollamas("MAX_LOADED_MODELS"),
        read_variable=count,
    )
    memory: int | None = setting(
        None,
        "Memory that all loaded models may have together; the least recently used makes room.",
        "nine tenths of what is available",
        notation=SIZE,
        variables=("CAUDAL_MEMORY",),
    )
    in_process: bool = setting(
        False,
        "Run the one MODEL in the server's own process, where its crash is the server's.",
    )
    alias: tuple[str, ...] = setting(
        (),
        "Another name that requests may use for a model; repeat it for more.",
        placeholder="NAME=MODEL",
        in_file=False,
        live=True,
    )
    routes: Path | None = setting(
        None,
        "A TOML file of aliases, and of names that lead to one of several models by rule: "
        "docs/many-models.md.",
        placeholder="FILE",
        live=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """How answers are read."""

    table: ClassVar[str] = "answers"
    per_model: ClassVar[bool] = True

    tool_parser: str = setting(
        "auto",
        "How the model writes tool calls: hermes, llama3_json, pythonic, mistral, deepseek_v3, "
        "openai …; `auto` goes by its chat template, `none` leaves them in the text.",
        placeholder="NAME",
    )
    reasoning_parser: str = setting(
        "auto",
        "How the model marks its reasoning: think, mistral, granite, openai …; `auto` goes by its "
        "chat template, `none` leaves it in the text.",
        placeholder="NAME",
    )


@dataclass(frozen=True, kw_only=True)
class _Loading:
    """How the model is loaded."""

    table: ClassVar[str] = "loading"
    per_model: ClassVar[bool] = True

    lora: tuple[str, ...] = setting(
        (),
        "An adapter (LoRA), a GGUF file or a folder of PEFT's, and the name that requests use for "
        "it as their `model`; repeat it for more.",
        placeholder="NAME=PATH",
        in_file=False,
    )
    max_model_len: int | None = setting(
        None,
        "Most tokens of one sequence, prompt and answer together.",
        "what the model was trained for, or what fits into the KV memory",
        least=2,
        variables=ours_or_ollamas("CONTEXT_LENGTH"),
        read_variable=count_or_default,
    )
    chat_template: Path | None = setting(
        None,
        "A template, Jinja's or Go's as in Ollama's packages, that turns conversations into "
        "prompts, to be used instead of the model's own.",
        placeholder="FILE",
    )
    generation_config: Literal["auto", "none"] = setting(
        "auto",
        "How requests that don't say otherwise are sampled: `auto`, as the model's maker "
        "recommends (generation_config.json, or the GGUF file's keys); `none`, as the API has it.",
    )
    kv_memory: int | None = setting(
        None,
        "Memory for keys and values of all sequences, e.g. 2GiB; touched only when used.",
        "a quarter of the available memory, or of --memory",
        notation=SIZE,
    )
    kv_type: native.KVType = setting("f16", "Number format of keys and values.")
    activations: native.Activations = setting(
        "auto",
        "`auto` computes with 8-bit activations where that is faster; `f32` is a slow reference.",
    )
    weights: native.WeightsPlace = setting(
        "auto",
        "Where packed weights are: in `memory`, or `mapped` from a file on the disk, which "
        "processes share and the system may take back; `auto` maps what doesn't fit in memory.",
    )
    packed_size: int | None = setting(
        None,
        "Most space on the disk for packed weights, which make the next start fast, of all models "
        "together; 0 keeps none.",
        "half of what is free",
        notation=SIZE,
        variables=("CAUDAL_PACKED_SIZE",),
        per_model=False,
    )
    threads: int | None = setting(
        None, "Threads that compute.", "the processors this process may use", least=1
    )


@dataclass(frozen=True, kw_only=True)
class _Scheduling:
    """How requests are scheduled."""

    table: ClassVar[str] = "scheduling"
    per_model: ClassVar[bool] = True

    max_num_seqs: int | None = setting(
        None,
        "Most sequences that are answered at once; the rest waits.",
        _engine("max_num_seqs"),
        least=1,
        most=config.MOST_SEQS,
        variables=ours_or_ollamas("NUM_PARALLEL"),
        read_variable=count_or_default,
    )
    max_num_batched_tokens: int | None = setting(
        None,
        "Most tokens computed in one iteration. Smaller keeps streams smooth while a long prompt "
        "comes in, larger reads the weights less often.",
        _engine("max_num_batched_tokens"),
        least=2,
        most=config.MOST_TOKENS,
    )
    no_prefix_cache: bool = setting(
        False, "Compute every prompt anew, even where an earlier one began the same."
    )
    schedule: config.ScheduleOrder = setting(
        "prefix",
        "Who of those waiting is next: `prefix` prefers the longest cached prefix (nobody "
        "starves), `fcfs` goes by arrival.",
    )
    ageing: float | None = setting(
        None,
        "Waiting that improves a request's `priority` by one, so that nobody starves.",
        _engine("ageing"),
        placeholder="SECONDS",
    )
    batching: config.Batching = setting(
        "continuous",
        "When they may start: at every iteration, when a batch is worth starting, or when the "
        "previous batch has ended. The latter two are for comparison.",
    )
    preferred_batch_size: int | None = setting(
        None,
        "With `--batching dynamic`: requests that make a batch worth starting at once.",
        _engine("preferred_batch_size"),
        least=1,
    )
    max_queue_delay: float | None = setting(
        None,
        "With `--batching dynamic`: the wait after which fewer are started, too.",
        _engine("max_queue_delay"),
        least=0,
        most=config.MOST_DELAY,
        placeholder="SECONDS",
    )
    max_queue: int | None = setting(
        None,
        "Most requests that may wait; one more is answered 429.",
        _engine("max_queue"),
        least=0,
        variables=ours_or_ollamas("MAX_QUEUE"),
        read_variable=count,
    )
    first_token_timeout: float | None = setting(
        None,
        "Give up a request whose answer has not begun after so long, unless it sets a "
        "`first_token_timeout` of its own.",
        "never",
        placeholder="SECONDS",
    )
    request_timeout: float | None = setting(
        None,
        "Give up a request whose answer is not complete after so long, unless it sets a `timeout` "
        "of its own.",
        "never",
        placeholder="SECONDS",
    )
    embedding_batch_size: int | None = setting(
        None,
        "Inputs to embed that make a batch worth starting at once.",
        _engine("embedding_batch_size"),
        least=1,
    )
    embedding_queue_delay: float | None = setting(
        None,
        "The wait after which fewer are started, too.",
        _engine("embedding_queue_delay"),
        least=0,
        most=config.MOST_DELAY,
        placeholder="SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class ServeSettings(_Scheduling, _Loading, _Answers, _Fleet, _Batches, _Limits, _Logs, _Server):
    """See the module. None is the default that a setting's text describes."""


TABLES = (_Server, _Limits, _Logs, _Batches, _Fleet, _Answers, _Loading, _Scheduling)
"""What settings are grouped by, in the order in which they are shown."""


@functools.cache
def settings_fields() -> dict[str, Field[Any]]:
    """The fields of all settings, by their names, in the order in which they are shown."""
    return {field.name: field for field in fields(ServeSettings)}


def is_per_model(name: str) -> bool:
    """Whether each model may have another value of a setting."""
    own = setting_of(settings_fields()[name]).per_model
    return getattr(table_of(name), "per_model", False) if own is None else own


def is_live(name: str) -> bool:
    """Whether a setting may change while the server runs."""
    return setting_of(settings_fields()[name]).live or is_per_model(name)


def table_of(name: str) -> type[Any]:
    """The class that has a setting: its table, whose docstring is its title."""
    return next(table for table in TABLES if name in table.__annotations__)
