"""Options of `caudal serve` alone: who is served, with which models, and how answers are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caudal.cli import options

_SERVER = "Where and for whom it listens"
_FLEET = "Which models are loaded"
_ANSWERS = "How answers are read"


def _duration(text: str) -> float:
    from caudal.fleet.durations import keep_alive_seconds

    try:
        return keep_alive_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Models = Annotated[
    list[str] | None,
    typer.Argument(
        help="Names as for `caudal pull`, or paths of GGUF files or of models' folders. A "
        "named model that is not on this machine yet is fetched.  [default: all models on "
        "this machine, each loaded when it is first asked for]",
        metavar="[MODEL]...",
        show_default=False,
    ),
]
Host = Annotated[
    str,
    typer.Option(
        help="Address to listen on; 0.0.0.0 lets other machines in.", rich_help_panel=_SERVER
    ),
]
Port = Annotated[
    int, typer.Option(min=0, max=65535, help="0 picks a free one.", rich_help_panel=_SERVER)
]
Ollama = Annotated[
    bool,
    typer.Option(
        "--ollama",
        help="Listen where Ollama does as well: on 127.0.0.1:11434, or where OLLAMA_HOST says.",
        rich_help_panel=_SERVER,
    ),
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(
        help="Name that requests use for the model; repeat it for more names.  [default: MODEL]",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="CAUDAL_API_KEY",
        help="Clients must send it, as a bearer token or x-api-key, on every route but / and "
        "/health.",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
StrictFields = Annotated[
    bool,
    typer.Option(
        "--strict-fields",
        help="Refuse fields that would have no effect, and answers longer than the context has "
        "room for; by default the former are named in x-caudal-ignored, the latter end there.",
        rich_help_panel=_SERVER,
    ),
]
AllowRequestTemplates = Annotated[
    bool,
    typer.Option(
        "--allow-request-templates",
        help="Requests may bring a `chat_template` of their own, which is run in a separate "
        "process, with limits of time and memory.",
        rich_help_panel=_SERVER,
    ),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Host name that requests may be for, besides this machine's own; repeat it for "
        "more. Of no account with --api-key.",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="Web pages that may use the server from a browser, e.g. http://localhost:3000; "
        "`*` for all. Repeat it for more.  [default: none]",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
MaxConnections = Annotated[
    int,
    typer.Option(
        min=1,
        help="Most connections at a time. One more closes the one that has waited longest for "
        "its client.",
        rich_help_panel=_SERVER,
    ),
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        min=0,
        max=86400,
        metavar="SECONDS",
        help="How long running answers may go on once the server is told to stop; a second "
        "signal ends them at once.",
        rich_help_panel=_SERVER,
    ),
]
KeepAlive = Annotated[
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
]
MaxLoadedModels = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Most models that are loaded at a time; 0 for as many as fit.  "
        "[env var: CAUDAL_MAX_LOADED_MODELS]  [default: 0]",
        rich_help_panel=_FLEET,
        show_default=False,
    ),
]
Memory = Annotated[
    int | None,
    typer.Option(
        parser=options.read_size,
        metavar="SIZE",
        help="Memory that all loaded models may have together; the least recently used makes "
        "room.  [env var: CAUDAL_MEMORY]  [default: nine tenths of what is available]",
        rich_help_panel=_FLEET,
        show_default=False,
    ),
]
InProcess = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="Run the one MODEL in the server's own process, where its crash is the server's.",
        rich_help_panel=_FLEET,
    ),
]
Alias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=MODEL",
        help="Another name that requests may use for a model; repeat it for more.",
        rich_help_panel=_FLEET,
        show_default=False,
    ),
]
RoutesFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A TOML file of aliases, and of names that lead to one of several models by rule: "
        "docs/many-models.md.",
        rich_help_panel=_FLEET,
        show_default=False,
    ),
]
ToolParser = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How the model writes tool calls: hermes, llama3_json, pythonic, mistral, "
        "deepseek_v3, openai …; `auto` goes by its chat template, `none` leaves them in the "
        "text.",
        rich_help_panel=_ANSWERS,
    ),
]
ReasoningParser = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How the model marks its reasoning: think, mistral, granite, openai …; `auto` "
        "goes by its chat template, `none` leaves it in the text.",
        rich_help_panel=_ANSWERS,
    ),
]
StoreChanges = Annotated[
    bool | None,
    typer.Option(
        "--store-changes/--no-store-changes",
        help="Whether clients may pull, make, copy and delete models, by Ollama's API.  [default: "
        "where no MODEL is named and there is a key, or only this machine reaches the server]",
        rich_help_panel=_SERVER,
        show_default=False,
    ),
]
AllowRuntimeLora = Annotated[
    bool,
    typer.Option(
        "--allow-runtime-lora",
        help="Requests may load adapters from files of this machine, and unload them "
        "(/v1/load_lora_adapter, /v1/unload_lora_adapter).  "
        "[env var: CAUDAL_ALLOW_RUNTIME_LORA_UPDATING]",
        rich_help_panel=_SERVER,
    ),
]
