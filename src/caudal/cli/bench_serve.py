"""`caudal bench serve`: load for a server, and what came of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from caudal.cli.bench_load import load_settings
from caudal.cli.output_file import STANDARD_OUTPUT, checked_output, write_output

if TYPE_CHECKING:
    from caudal.bench.serving.report import Report
    from caudal.bench.serving.settings import LoadSettings

_LOAD = "What is asked for"
_TIMES = "When"
_MEASURED = "What is measured"
_SERVER = "The server"


def serve(
    url: Annotated[
        str, typer.Argument(help="The server, e.g. http://127.0.0.1:8000.", metavar="URL")
    ],
    model: Annotated[
        str | None,
        typer.Argument(
            help="The server's name for the model.  [default: its first that generates]",
            metavar="MODEL",
        ),
    ] = None,
    workload: Annotated[
        Literal["random", "shared-prefix", "multi-turn", "agent", "json", "repeat", "dataset"]
        | None,
        typer.Option(
            help="random: nothing in common; shared-prefix: some beginnings in turn; multi-turn: "
            "chats whose history grows; agent: the same behind 10,000 tokens of rules and tools; "
            "json: answers held to schemas; repeat: answers that repeat their prompts; "
            "dataset: from --dataset.  [default: random]",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            help="ShareGPT's JSON, or JSONL with prompt or messages, and max_tokens.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="How many requests.  [default: 48]", rich_help_panel=_LOAD),
    ] = None,
    conversations: Annotated[
        int | None,
        typer.Option(
            help="How many conversations, where they have turns.  [default: 16; agents: 8]",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option(
            help="Requests of a conversation.  [default: 4; agents: 8]", rich_help_panel=_LOAD
        ),
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(
            help="What is new in each prompt: N, uniform:LOW:HIGH, normal:MEAN:DEVIATION or "
            "lognormal:MEDIAN:SIGMA.  [default: 128]",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    output_tokens: Annotated[
        str | None,
        typer.Option(
            help="Tokens that each must generate, in the same forms.  [default: 64; repeat: 128; "
            "json: at most 400; dataset: its own]",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    prefixes: Annotated[
        int | None,
        typer.Option(
            help="Different prefixes that the prompts begin with, in turn.", rich_help_panel=_LOAD
        ),
    ] = None,
    prefix_tokens: Annotated[
        int | None, typer.Option(help="Length of each prefix.", rich_help_panel=_LOAD)
    ] = None,
    tools: Annotated[
        int | None,
        typer.Option(help="Functions of an agent.  [default: 16]", rich_help_panel=_LOAD),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Token ids are below this.  [default: what the server says]",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Another seed, other prompts and times.", rich_help_panel=_LOAD),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests (or conversations) a second, whatever becomes of earlier ones.  "
            "[default: --concurrency decides]",
            rich_help_panel=_TIMES,
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(
            help="0: at equal gaps; 1: at random times (Poisson); more: in bursts.  [default: 1]",
            rich_help_panel=_TIMES,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="Most under way.  [default: 16; with --rate, no bound]", rich_help_panel=_TIMES
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            help="Seconds for which requests begin, instead of a number of them.",
            rich_help_panel=_TIMES,
        ),
    ] = None,
    think: Annotated[
        float | None,
        typer.Option(help="Seconds between an answer and the next turn.", rich_help_panel=_TIMES),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            help="Requests before that, which don't count.  [default: 2]", rich_help_panel=_TIMES
        ),
    ] = None,
    phases: Annotated[
        str | None,
        typer.Option(
            help="Of cold (one request, before all), warm and warm-prefix (the warm ones again), "
            "separated by commas.  [default: warm]",
            rich_help_panel=_MEASURED,
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            help="Rates separated by commas, or auto, until an SLO breaks; each for --duration or "
            "15 seconds.",
            rich_help_panel=_MEASURED,
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="A promise, e.g. ttft:p95:500ms; of ttft, itl, tpot and e2e. May be repeated.",
            rich_help_panel=_MEASURED,
        ),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="What the server costs; a million tokens is shown.",
            rich_help_panel=_MEASURED,
        ),
    ] = None,
    api: Annotated[
        Literal["chat", "completions"] | None,
        typer.Option(
            help="How it is asked.  [default: completions for random prompts, else chat]",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    prompts: Annotated[
        Literal["ids", "text"] | None,
        typer.Option(
            help="What completions get.  [default: token ids, where the server takes them]",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Answers go on to the length asked for.  [default: if the server can]",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    extra_body: Annotated[
        str | None,
        typer.Option(help="JSON with further fields of each request.", rich_help_panel=_SERVER),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Of sampling.  [default: 0]", rich_help_panel=_SERVER),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds without a byte after which a request has failed.  [default: 300]",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="CAUDAL_API_KEY",
            help="Sent as a bearer token.",
            show_default=False,
            rich_help_panel=_SERVER,
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Send the load of this report (JSON) again; other options change it.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write the report there as JSON; - prints nothing else.", callback=checked_output
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write the report there as a page with plots.", callback=checked_output),
    ] = None,
) -> None:
    """Measure a running server with streamed answers; any that speaks OpenAI's API.

    16 requests at a time, until 48 are answered:

        caudal bench serve http://127.0.0.1:8000 smollm2

    What prefix reuse brings to eight agents, with plots:

        caudal bench serve http://127.0.0.1:8000 --workload agent --html report.html

    How many requests a second can be promised an answer that begins within half a second:

        caudal bench serve http://127.0.0.1:8000 --sweep auto --slo ttft:p95:500ms

    Exits with 1 if any request failed; one that generates fewer tokens than asked for has.
    """
    given: dict[str, Any] = {
        "workload": workload,
        "dataset": dataset,
        "requests": requests,
        "conversations": conversations,
        "turns": turns,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "prefixes": prefixes,
        "prefix_tokens": prefix_tokens,
        "tools": tools,
        "vocab_size": vocab_size,
        "seed": seed,
        "rate": rate,
        "burstiness": burstiness,
        "concurrency": concurrency,
        "duration": duration,
        "think": think,
        "warmup": warmup,
        "phases": phases,
        "sweep": sweep,
        "slos": slo or None,
        "api": api,
        "prompts": prompts,
        "ignore_eos": ignore_eos,
        "extra_body": extra_body,
        "temperature": temperature,
        "timeout": timeout,
    }
    settings = load_settings({k: v for k, v in given.items() if v is not None}, replay)
    address = url.rstrip("/").removesuffix("/v1")
    report = _measure(address, model, settings, api_key, price_per_hour)
    _give(report, json, html)
    if report.failed:
        raise typer.Exit(1)


def _measure(
    url: str,
    model: str | None,
    settings: LoadSettings,
    api_key: str | None,
    price_per_hour: float | None,
) -> Report:
    import asyncio

    from rich.console import Console
    from uvicorn.loops.auto import auto_loop_factory

    from caudal.bench.serving.display import shown
    from caudal.bench.serving.measuring import measure
    from caudal.bench.serving.runner import Progress

    progress = Progress()
    with (
        shown(progress, Console(stderr=True)),
        asyncio.Runner(loop_factory=auto_loop_factory()) as runner,
    ):
        return runner.run(
            measure(
                url,
                model,
                settings,
                api_key=api_key,
                price_per_hour=price_per_hour,
                command=_command(),
                progress=progress,
            )
        )


def _command() -> list[str]:
    """This command, without the key that may be in it."""
    words: list[str] = []
    for word in sys.argv[1:]:
        hidden = word.startswith("--api-key=") or (words and words[-1] == "--api-key")
        words.append("--api-key=…" if "=" in word and hidden else "…" if hidden else word)
    return words


def _give(report: Report, json: Path | None, html: Path | None) -> None:
    from rich.console import Console

    from caudal.bench.serving.display import print_report

    if json == STANDARD_OUTPUT:
        typer.echo(report.to_json().decode())
    else:
        print_report(report, Console())
        if json is not None:
            write_output(json, report.to_json())
    if html is not None:
        from caudal.bench.serving.pages import report_page

        write_output(html, report_page(report).encode())
