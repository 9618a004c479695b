"""`caudal bench`: how fast this machine runs a model, and how fast servers are."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caudal.cli import options
from caudal.cli.bench_compare import compare
from caudal.cli.bench_serve import serve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from caudal.bench.engine import CaseResult
    from caudal.bench.grammar import GrammarReport
    from caudal.bench.profile import CaseProfile
    from caudal.bench.python_cost import PythonCost
    from caudal.bench.speculation import SpeculationResult

app = typer.Typer(no_args_is_help=True, help="Measure how fast models and servers are.")


@app.callback()
def bench() -> None:
    """Measure how fast models and servers are."""


@app.command()
def engine(
    model: options.Model,
    runs: Annotated[
        int,
        typer.Option(
            min=1,
            help="How often each case is measured; medians are shown. With --profile ten times as "
            "often, and each stage's cheapest run counts.",
        ),
    ] = 5,
    llama_bench: Annotated[
        Path | None,
        typer.Option(
            help="llama.cpp's llama-bench, measured in turn with Caudal on the same file.",
            show_default=False,
            exists=True,
            dir_okay=False,
            resolve_path=True,
        ),
    ] = None,
    grammar: Annotated[
        bool, typer.Option("--grammar", help="Measure JSON held to a schema instead.")
    ] = False,
    speculation: Annotated[
        bool,
        typer.Option(
            "--speculation", help="Measure what guessing tokens by look-up brings instead."
        ),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where an iteration's time goes instead.")
    ] = False,
    threads: options.Threads = None,
    kv_type: options.KvType = "f16",
    activations: options.Activations = "auto",
) -> None:
    """Measure prefill, decoding and batches, without HTTP.

    Shows tokens per second, the median of several runs; leave the machine alone meanwhile:

        caudal bench engine smollm2

    Beside llama.cpp, on the same file, in the same run:

        caudal bench engine smollm2 --llama-bench /usr/local/bin/llama-bench

    The peer gets as many threads as Caudal.

    What it costs to hold an answer to a JSON schema, and what is saved by appending text that the
    schema forces instead of generating it:

        caudal bench engine smollm2 --grammar

    What guessing tokens by looking up what followed the same text before brings where answers
    repeat their prompts, and what it would if all guesses were right; and what it costs where
    they don't repeat anything:

        caudal bench engine smollm2 --speculation

    Time, memory traffic and arithmetic of each stage of an iteration, and what Python takes of one
    while a server streams to many clients:

        caudal bench engine smollm2 --profile
    """
    from rich.console import Console
    from rich.table import Table

    from caudal.backends.native.executor import NativeExecutor
    from caudal.bench.engine import PROMPT_TOKENS, run_cases
    from caudal.bench.grammar import measure_grammar
    from caudal.bench.profile import profile_cases
    from caudal.bench.python_cost import measure_python
    from caudal.bench.speculation import measure_speculation
    from caudal.cli.pull_display import ensure_with_display
    from caudal.engine.drafting.speculation import Speculation
    from caudal.loading.load import load_model
    from caudal.loading.options import LoadOptions
    from caudal.store import Store

    if grammar + speculation + profile + (llama_bench is not None) > 1:
        raise typer.BadParameter(
            "--grammar, --speculation, --profile and --llama-bench exclude each other."
        )
    ensure_with_display(Store(), model)
    loaded = load_model(
        model,
        LoadOptions(
            threads=threads,
            kv_type=kv_type,
            activations=activations,
            max_num_batched_tokens=PROMPT_TOKENS,
            speculative=None,  # what an iteration takes depends on what is guessed in it
        ),
    )
    facts, executor = loaded.facts, loaded.facts.executor
    typer.echo(
        f"{model}: {facts.tensors_text}; {executor.instruction_set} kernels, "
        f"{executor.threads} threads, "
        + (f"cheapest of {10 * runs} runs" if profile else f"median of {runs} runs")
    )
    console = Console()
    if grammar:
        with console.status("") as status:
            report = measure_grammar(
                loaded, runs=runs, progress=lambda name: status.update(f"measuring {name} …")
            )
        typer.echo(_grammar_table(report))
        return
    if speculation:
        with console.status("") as status:
            found = list(
                measure_speculation(
                    loaded,
                    Speculation(),
                    runs=runs,
                    progress=lambda name: status.update(f"measuring {name} …"),
                )
            )
        console.print(_speculation_table(found))
        return
    if profile:
        if not isinstance(loaded.executor, NativeExecutor):
            raise typer.BadParameter("only the native backend can be profiled.")
        with console.status("profiling …"):
            cases = profile_cases(loaded.executor, 10 * runs)
        for case in cases:
            console.print(_profile_table(case, executor.threads))
        with console.status("serving …"):
            typer.echo(_python_table(measure_python(loaded, loaded.executor)))
        return
    table = Table("case", "what")
    table.add_column("tok/s", justify="right")
    if llama_bench is not None:
        table.add_column("llama.cpp", justify="right")
        table.add_column("ratio", justify="right")
    with console.status("") as status:
        results = run_cases(
            loaded,
            runs=runs,
            llama_bench=llama_bench,
            progress=lambda name: status.update(f"measuring {name} …"),
        )
        for result in results:
            table.add_row(*_cells(result, with_peer=llama_bench is not None))
    console.print(table)


app.command()(serve)
app.command()(compare)


def _grammar_table(report: GrammarReport) -> str:
    forced = report.answer_tokens - report.drawn_tokens
    return _lines(
        {
            "index of the vocabulary": f"{1000 * report.index_seconds:.0f} ms, once",
            "compiling the schema": f"{1000 * report.compile_seconds:.1f} ms, once",
            "masking": f"{statistics.median(report.mask_microseconds):.0f} us a token",
            "answer, all drawn": f"{1000 * statistics.median(report.drawn_seconds):.0f} ms",
            "answer, jump-ahead": f"{1000 * statistics.median(report.jump_seconds):.0f} ms, "
            f"{forced} of {report.answer_tokens} tokens forced",
            "ratio": f"{report.speedup:.2f} x",
        }
    )


def _speculation_table(results: Sequence[SpeculationResult]) -> Table:
    from rich.table import Table

    table = Table("answers", "at once")
    for name in ("tok/s", "with guesses", "ratio", "all right", "right"):
        table.add_column(name, justify="right")
    for each in results:
        table.add_row(
            each.text,
            str(each.sequences),
            f"{statistics.median(each.plain):.0f}",
            f"{statistics.median(each.guessed):.0f}",
            f"{each.ratio:.2f}",
            "" if each.bound is None else f"{each.bound:.2f}",
            f"{100 * each.accepted:.0f} %" if each.accepted else "",
        )
    return table


def _lines(lines: Mapping[str, str]) -> str:
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())


def _profile_table(case: CaseProfile, threads: int) -> Table:
    from rich.table import Table

    rate = threads * case.tokens / case.thread_seconds
    table = Table("stage", title=f"{case.name}: {rate:.0f} tok/s if no thread ever waited")
    for heading in ("calls", "ms", "share", "GB/s", "GOP/s"):
        table.add_column(heading, justify="right")
    for stage in case.stages:
        seconds = stage.work_seconds / threads
        table.add_row(
            stage.name,
            str(stage.calls),
            f"{seconds * 1e3:.3f}",
            f"{stage.work_seconds / case.thread_seconds:.1%}",
            f"{stage.bytes / seconds / 1e9:.1f}" if stage.bytes else "",
            f"{stage.operations / seconds / 1e9:.0f}" if stage.operations else "",
        )
    return table


def _python_table(cost: PythonCost) -> str:
    def part(seconds: float) -> str:
        return f"{1e3 * seconds:.2f} ms, {seconds / cost.iteration:.1%}"

    return _lines(
        {
            f"streaming {cost.streams} answers": f"{1e3 * cost.iteration:.2f} ms an iteration",
            "Python, engine": f"{part(cost.engine)}, while nothing is computed",
            "Python, event loop": f"{part(cost.event_loop)}, beside what is computed",
        }
    )


def _cells(case: CaseResult, *, with_peer: bool) -> list[str]:
    cells = [case.name, case.description, f"{case.median:.0f}"]
    if with_peer:
        peer, ratio = case.peer_median, case.ratio
        cells.append("-" if peer is None else f"{peer:.0f}")
        cells.append("-" if ratio is None else f"{ratio:.2f} x")
    return cells
