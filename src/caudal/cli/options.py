"""Options that several commands share: how a model is loaded and how its engine runs."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Literal

import typer

from caudal.backends.native import options as native
from caudal.engine import config
from caudal.errors import ParameterError

_MODEL = "How the model is loaded"
_ENGINE = "How requests are scheduled"


def size_of(text: str) -> int:
    """Bytes of a size such as `2GiB`; raises `ValueError`."""
    from caudal.loading.options import parse_size

    try:
        return parse_size(text)
    except ParameterError as error:
        raise ValueError(str(error)) from error


def read_size(text: str) -> int:
    """The same, of an option."""
    try:
        return size_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _chat_template(path: str) -> str:
    from caudal.cli.chat_template_file import read_chat_template

    return read_chat_template(path)


def _default(limit: str) -> str:
    """The engine's own default, for the help; None reaches the engine as just that."""
    [value] = [field.default for field in fields(config.EngineConfig) if field.name == limit]
    return f"  [default: {value}]"


Model = Annotated[
    str,
    typer.Argument(
        help="A name as for `caudal pull`, or the path of a GGUF file or of a model's "
        "folder. A named model that is not on this machine yet is fetched.",
        metavar="MODEL",
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of one sequence, prompt and answer together.  [default: what the model "
        "was trained for, or what fits into the KV memory]",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        parser=_chat_template,
        metavar="FILE",
        help="A template, Jinja's or Go's as in Ollama's packages, that turns conversations into "
        "prompts, to be used instead of the model's own.",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
GenerationConfig = Annotated[
    Literal["auto", "none"],
    typer.Option(
        help="How requests that don't say otherwise are sampled: `auto`, as the model's maker "
        "recommends (generation_config.json, or the GGUF file's keys); `none`, as the API has it.",
        rich_help_panel=_MODEL,
    ),
]
Lora = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PATH",
        help="An adapter (LoRA), a GGUF file or a folder of PEFT's, and the name that requests use "
        "for it as their `model`; repeat it for more.",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads that compute.  [default: the processors this process may use]",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
PoolSize = Annotated[
    int | None,
    typer.Option(
        parser=read_size,
        metavar="SIZE",
        help="Memory for keys and values of all sequences, e.g. 2GiB; touched only when used.  "
        "[default: a quarter of the available memory, or of --memory]",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
KvType = Annotated[
    native.KVType,
    typer.Option(help="Number format of keys and values.", rich_help_panel=_MODEL),
]
Activations = Annotated[
    native.Activations,
    typer.Option(
        help="`auto` computes with 8-bit activations where that is faster; `f32` is a slow "
        "reference.",
        rich_help_panel=_MODEL,
    ),
]
WeightsPlace = Annotated[
    native.WeightsPlace,
    typer.Option(
        help="Where packed weights are: in `memory`, or `mapped` from a file on the disk, which "
        "processes share and the system may take back; `auto` maps what doesn't fit in memory.",
        rich_help_panel=_MODEL,
    ),
]
PackedSize = Annotated[
    int | None,
    typer.Option(
        parser=read_size,
        metavar="SIZE",
        envvar="CAUDAL_PACKED_SIZE",
        help="Most space on the disk for packed weights, which make the next start fast, of all "
        "models together; 0 keeps none.  [default: half of what is free]",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        help="Most sequences that are answered at once; the rest waits." + _default("max_num_seqs"),
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
MaxNumBatchedTokens = Annotated[
    int | None,
    typer.Option(
        help="Most tokens computed in one iteration. Smaller keeps streams smooth while a long "
        "prompt comes in, larger reads the weights less often."
        + _default("max_num_batched_tokens"),
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
NoPrefixCache = Annotated[
    bool,
    typer.Option(
        "--no-prefix-cache",
        help="Compute every prompt anew, even where an earlier one began the same.",
        rich_help_panel=_ENGINE,
    ),
]
Schedule = Annotated[
    config.ScheduleOrder,
    typer.Option(
        help="Who of those waiting is next: `prefix` prefers the longest cached prefix (nobody "
        "starves), `fcfs` goes by arrival.",
        rich_help_panel=_ENGINE,
    ),
]
Batching = Annotated[
    config.Batching,
    typer.Option(
        help="When they may start: at every iteration, when a batch is worth starting, or when the "
        "previous batch has ended. The latter two are for comparison.",
        rich_help_panel=_ENGINE,
    ),
]
Ageing = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Waiting that improves a request's `priority` by one, so that nobody starves."
        + _default("ageing"),
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
PreferredBatchSize = Annotated[
    int | None,
    typer.Option(
        help="With `--batching dynamic`: requests that make a batch worth starting at once."
        + _default("preferred_batch_size"),
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
MaxQueueDelay = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="With `--batching dynamic`: the wait after which fewer are started, too."
        + _default("max_queue_delay"),
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
FirstTokenTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Give up a request whose answer has not begun after so long, unless it sets a "
        "`first_token_timeout` of its own.  [default: never]",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
RequestTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Give up a request whose answer is not complete after so long, unless it sets a "
        "`timeout` of its own.  [default: never]",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
MaxQueue = Annotated[
    int | None,
    typer.Option(
        help="Most requests that may wait; one more is answered 429." + _default("max_queue"),
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
EmbeddingBatchSize = Annotated[
    int | None,
    typer.Option(
        help="Inputs to embed that make a batch worth starting at once."
        + _default("embedding_batch_size"),
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
EmbeddingQueueDelay = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="The wait after which fewer are started, too." + _default("embedding_queue_delay"),
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]


def adapter_paths(given: list[str] | None) -> dict[str, str]:
    """The adapters that `--lora` names; raises `BadParameter` where one is none."""
    from caudal.loading.adapters import parse_adapter

    paths: dict[str, str] = {}
    for text in given or ():
        try:
            name, path = parse_adapter(text)
        except ParameterError as error:
            raise typer.BadParameter(str(error), param_hint="--lora") from error
        if name in paths:
            raise typer.BadParameter(f"there are two adapters {name!r}", param_hint="--lora")
        paths[name] = path
    return paths
