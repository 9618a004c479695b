"""`caudal bench`: how fast this machine runs a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caudal.cli import options

if TYPE_CHECKING:
    from caudal.bench.engine import CaseResult

app = typer.Typer(no_args_is_help=True, help="Measure how fast this machine runs a model.")


@app.callback()
def bench() -> None:
    """Measure how fast this machine runs a model."""


@app.command()
def engine(
    model: options.Model,
    runs: Annotated[
        int, typer.Option(min=1, help="How often each case is measured; medians are shown.")
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
    """
    from rich.console import Console
    from rich.table import Table

    from caudal.bench.engine import PROMPT_TOKENS, run_cases
    from caudal.cli.pull_display import ensure_with_display
    from caudal.loader import LoadOptions, load_model
    from caudal.store import Store

    ensure_with_display(Store(), model)
    loaded = load_model(
        model,
        LoadOptions(
            threads=threads,
            kv_type=kv_type,
            activations=activations,
            max_num_batched_tokens=PROMPT_TOKENS,
        ),
    )
    facts = loaded.facts
    typer.echo(
        f"{model}: {facts['tensors']}; {facts['instruction_set']} kernels, "
        f"{facts['threads']} threads, median of {runs} runs"
    )
    table = Table("case", "what")
    table.add_column("tok/s", justify="right")
    if llama_bench is not None:
        table.add_column("llama.cpp", justify="right")
        table.add_column("ratio", justify="right")
    console = Console()
    with console.status("") as status:
        cases = run_cases(
            loaded,
            runs=runs,
            llama_bench=llama_bench,
            progress=lambda name: status.update(f"measuring {name} …"),
        )
        for case in cases:
            table.add_row(*_cells(case, with_peer=llama_bench is not None))
    console.print(table)


def _cells(case: CaseResult, *, with_peer: bool) -> list[str]:
    cells = [case.name, case.description, f"{case.median:.0f}"]
    if with_peer:
        peer, ratio = case.peer_median, case.ratio
        cells.append("-" if peer is None else f"{peer:.0f}")
        cells.append("-" if ratio is None else f"{ratio:.2f} x")
    return cells
