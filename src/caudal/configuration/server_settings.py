"""Settings of the server: where it listens, what clients may cost, what it writes down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from caudal.batches.options import BatchOptions
from caudal.configuration.environment import flag
from caudal.configuration.setting import SIZE, setting
from caudal.logs.setup import LogFormat, LogLevel
from caudal.server.limits import ServerLimits


@dataclass(frozen=True, kw_only=True)
class ServerTable:
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
        metavar="FILE",
        is_path=True,
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
        metavar="ADDRESS|NETWORK",
    )
    root_path: str = setting(
        "",
        "The path below which a proxy has the server, which it strips: /llm, say.",
        "none",
        metavar="PATH",
    )
    ssl_certfile: Path | None = setting(
        None,
        "Speak HTTPS, with the certificate in this file (PEM), and behind it those that lead to "
        "its authority. SIGHUP reads it anew.",
        "none: plain HTTP",
        metavar="FILE",
        is_path=True,
    )
    ssl_keyfile: Path | None = setting(
        None,
        "The certificate's key (PEM).",
        "in the certificate's file",
        metavar="FILE",
        is_path=True,
    )
    ssl_keyfile_password: str | None = setting(
        None,
        "What the key is encrypted with.",
        variables=("CAUDAL_SSL_KEYFILE_PASSWORD",),
        exact=True,
        metavar="WORD",
        secret=True,
    )
    ssl_ca_certs: Path | None = setting(
        None,
        "Clients must have a certificate that one of the authorities in this file has signed.",
        "clients need none",
        metavar="FILE",
        is_path=True,
    )
    strict_fields: bool = setting(
        False,
        "Refuse fields that would have no effect, and answers longer than the context has room "
        "for; by default the former are named in x-caudal-ignored, the latter end there.",
    )
    normalise_prompts: tuple[str, ...] = setting(
        (),
        "An agent (claude-code, opencode, pi, openclaw; all) from whose system prompts is taken "
        "what would keep the rest from being found in the prefix cache: hashes, countdowns; or "
        "moved behind it: dates, folders. Repeat it for more.",
        "none",
        metavar="PRESET",
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
        metavar="NAME",
    )
    allow_origin: tuple[str, ...] = setting(
        (),
        "Web pages that may use the server from a browser, e.g. http://localhost:3000; `*` for "
        "all. Repeat it for more.",
        "none",
        metavar="ORIGIN",
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
class LimitsTable:
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
        metavar="SECONDS",
        least=0.1,
        most=86400,
        live=True,
    )
    body_timeout: float = setting(
        ServerLimits.body_seconds,
        "How long a request's body may pause.",
        metavar="SECONDS",
        least=0.1,
        most=86400,
        live=True,
    )
    unread_timeout: float = setting(
        ServerLimits.unread_seconds,
        "How long an answer may wait for its reader; then the connection is closed, and the "
        "request given up.",
        metavar="SECONDS",
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
        metavar="SECONDS",
        least=0,
        most=86400,
        live=True,
    )
    drain_timeout: float = setting(
        ServerLimits.drain_seconds,
        "How long running answers may go on once the server is told to stop; a second signal ends "
        "them at once.",
        metavar="SECONDS",
        least=0,
        most=86400,
        live=True,
    )


@dataclass(frozen=True, kw_only=True)
class LogsTable:
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
        metavar="FILE",
        is_path=True,
    )
    otlp_endpoint: str | None = setting(
        None,
        "An OpenTelemetry collector to send a span of each request to, such as "
        "http://127.0.0.1:4318; OTEL_... variables are heeded. Needs caudal[otel].",
        "what OTEL_EXPORTER_OTLP_ENDPOINT says, else none",
        metavar="URL",
    )


@dataclass(frozen=True, kw_only=True)
class BatchesTable:
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
