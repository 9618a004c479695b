"""Settings of models: which are loaded, how they are, how requests to them are scheduled."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from caudal.backends.native import options as native
from caudal.configuration.environment import count, count_or_default, ours_or_ollamas
from caudal.configuration.setting import DURATION, KV_TYPE, SIZE, setting
from caudal.engine import config


def _engine(limit: str) -> str:
    """The engine's own default; None reaches the engine as just that."""
    [value] = [field.default for field in fields(config.EngineConfig) if field.name == limit]
    return str(value)


@dataclass(frozen=True, kw_only=True)
class FleetTable:
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
        metavar="NAME=MODEL",
        in_file=False,
        live=True,
    )
    routes: Path | None = setting(
        None,
        "A TOML file of aliases, and of names that lead to one of several models by rule: "
        "docs/many-models.md.",
        metavar="FILE",
        is_path=True,
        live=True,
    )


@dataclass(frozen=True, kw_only=True)
class AnswersTable:
    """How answers are read."""

    table: ClassVar[str] = "answers"
    per_model: ClassVar[bool] = True

    tool_parser: str = setting(
        "auto",
        "How the model writes tool calls: hermes, llama3_json, pythonic, mistral, deepseek_v3, "
        "openai …; `auto` goes by its chat template, `none` leaves them in the text.",
        metavar="NAME",
    )
    reasoning_parser: str = setting(
        "auto",
        "How the model marks its reasoning: think, mistral, granite, openai …; `auto` goes by its "
        "chat template, `none` leaves it in the text.",
        metavar="NAME",
    )


@dataclass(frozen=True, kw_only=True)
class LoadingTable:
    """How the model is loaded."""

    table: ClassVar[str] = "loading"
    per_model: ClassVar[bool] = True

    lora: tuple[str, ...] = setting(
        (),
        "An adapter (LoRA), a GGUF file or a folder of PEFT's, and the name that requests use for "
        "it as their `model`; repeat it for more.",
        metavar="NAME=PATH",
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
        metavar="FILE",
        is_path=True,
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
    prefix_memory: int | None = setting(
        None,
        "Memory beyond that for computed prefixes that had to be given up, e.g. 4GiB: where they "
        "are copied back faster than computed anew.",
        "none",
        notation=SIZE,
    )
    prefix_store: Path | None = setting(
        None,
        "A directory for computed prefixes, which are there again after a restart. It holds keys "
        "and values of prompts: docs/prefix-cache.md.",
        metavar="DIR",
        is_path=True,
    )
    prefix_store_size: int | None = setting(
        None,
        "Most space that it takes, of all models together; what was used least recently goes.",
        "half of what would be free without it",
        notation=SIZE,
    )
    kv_type: native.KVType = setting(
        "f16",
        "Number format of keys and values: `q8` takes half the memory of `f16`, and long "
        "contexts go faster with it: docs/kv-types.md.",
        notation=KV_TYPE,
    )
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
class SchedulingTable:
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
        metavar="SECONDS",
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
        metavar="SECONDS",
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
        metavar="SECONDS",
    )
    request_timeout: float | None = setting(
        None,
        "Give up a request whose answer is not complete after so long, unless it sets a `timeout` "
        "of its own.",
        "never",
        metavar="SECONDS",
    )
    speculative: str = setting(
        "ngram",
        "Guess tokens and compute several at once, where that pays; answers are the same: `ngram` "
        "looks up what followed the same text before, `draft:MODEL` asks a smaller model, `mtp` "
        "the model's own heads.",
        metavar="ngram|draft:MODEL|mtp|off",
    )
    speculative_config: str | None = setting(
        None,
        "The same as JSON, with vLLM's names: method, model, num_speculative_tokens, "
        "prompt_lookup_max, prompt_lookup_min.",
        metavar="JSON",
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
        metavar="SECONDS",
    )
