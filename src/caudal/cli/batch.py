"""`caudal batch`: answers a file of requests, without a server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caudal.cli import options
from caudal.cli.output_file import checked_output

if TYPE_CHECKING:
    from caudal.batches.file_job import FileJob
    from caudal.batches.lines import Fault
    from caudal.loading.options import LoadOptions
    from caudal.service.models import Models
    from caudal.store import Store

CONCURRENCY = 64
"""Twice as many as are answered at once by default, so that there is always one to be begun."""


def batch(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON lines: of OpenAI's Batch API, or each with `messages`, `prompt` or `input`, "
            "and whatever else a request may have.",
            metavar="FILE",
            exists=True,
            dir_okay=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            help="Where answers go.  [default: beside FILE, e.g. requests.answers.jsonl]",
            show_default=False,
        ),
    ] = None,
    errors: Annotated[
        Path | None,
        typer.Option(
            help="Where lines go that failed; without any there is none.  "
            "[default: beside FILE, e.g. requests.errors.jsonl]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Answers all lines, whatever they name.  [default: the models that they name]",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=4096, help="Most lines that are under way at a time.")
    ] = CONCURRENCY,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write over answers that are there already.")
    ] = False,
    max_model_len: options.MaxModelLen = None,
    threads: options.Threads = None,
    packed_size: options.PackedSize = None,
) -> None:
    """Answer a file of requests, one on each line.

    The answers are in requests.answers.jsonl then:

        caudal batch requests.jsonl --model smollm2

    where a line of requests.jsonl may be as short as

        {"prompt": "The capital of France is", "max_tokens": 8}

    Ctrl-C stops it, and so does whatever else; the same command goes on from there. Its exit status
    is 1 where lines have failed.
    """
    from caudal.batches.file_job import FileJob, JobFiles
    from caudal.batches.line_forms import AnyLines
    from caudal.batches.lines import LineLimits, find_lines
    from caudal.cli.pull_display import ensure_with_display
    from caudal.loading.options import LoadOptions
    from caudal.server.json_bounds import find_excess
    from caudal.store import Store

    files = JobFiles(
        lines=file,
        output=output or file.with_suffix(".answers.jsonl"),
        errors=errors or file.with_suffix(".errors.jsonl"),
    )
    if not file.is_file():
        raise typer.BadParameter("it is read more than once, so it has to be a file and no pipe")
    for path, option in ((files.output, "--output"), (files.errors, "--errors")):
        if path.exists() and not path.is_file():
            raise typer.BadParameter(f"{path} is no file", param_hint=option)
        checked_output(path)
    if len({path.absolute() for path in (files.lines, files.output, files.errors)}) < 3:
        raise typer.BadParameter("FILE, --output and --errors must be three files")
    if files.output.exists() and not overwrite:
        raise typer.BadParameter(
            f"{files.output} is there already: name another, or say --overwrite",
            param_hint="--output",
        )
    read = AnyLines(find_excess, model)
    lines, faults = find_lines(file, read, LineLimits(lines=None))
    if faults:
        _refuse(file, faults)
    load = LoadOptions(
        max_model_len=max_model_len,
        threads=threads,
        packed_size=packed_size,
        for_all=len(lines.models) > 1,
    )
    store = Store()
    named = sorted(lines.models)
    for name in named:
        ensure_with_display(store, name)
    job = FileJob(files, lines, read, f"{model}")
    try:
        _answer(job, len(lines), named, store, load, concurrency)
        job.finish()
    finally:
        job.close()
    journal = job.journal
    typer.echo(f"{journal.completed} answers in {files.output}", err=True)
    if journal.failed:
        typer.echo(f"caudal: {journal.failed} lines failed: see {files.errors}", err=True)
        raise typer.Exit(1)


def _refuse(file: Path, faults: list[Fault]) -> None:
    """Say what is wrong with the input, line by line; raises `typer.Exit`."""
    for fault in faults:
        where = str(file) if fault.line is None else f"{file}:{fault.line}"
        typer.echo(f"caudal: {where}: {fault.message}", err=True)
    raise typer.Exit(2)


def _answer(
    job: FileJob,
    total: int,
    named: list[str],
    store: Store,
    load: LoadOptions,
    concurrency: int,
) -> None:
    """Have all lines answered that aren't yet.

    Raises:
        CaudalError: A model can't be loaded, or the input has changed.
        KeyboardInterrupt: Ctrl-C; what is done stays.
    """
    import asyncio

    from caudal.cli.batch_display import batch_display
    from caudal.server.app import create_app
    from caudal.server.batch_lines import LineCalls

    if job.journal.completed + job.journal.failed == total:
        return  # it was stopped when only the output was left to be written

    async def run() -> None:
        async with running_models(named, store, load) as models:
            answer = LineCalls(create_app(models), lambda tenant: {})
            with batch_display(job.journal, total) as note:
                await job.run(answer, concurrency, note)

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        done = job.journal.completed + job.journal.failed
        typer.echo(
            f"caudal: stopped with {done} of {total} lines done; the same command goes on from "
            "there",
            err=True,
        )
        raise


@contextlib.asynccontextmanager
async def running_models(
    named: list[str], store: Store, load: LoadOptions
) -> AsyncIterator[Models]:
    """The models, each in a process of its own, until the end.

    Args:
        named: They, which are on this machine.
        store: Where.
        load: How they run.

    Raises:
        CaudalError: On entering: one can't be loaded.
    """
    import asyncio

    from caudal.configuration.pieces import MEMORY_SHARE
    from caudal.fleet.catalogue import GivenModels, given_offer
    from caudal.fleet.durations import FOREVER
    from caudal.fleet.fleet import Fleet
    from caudal.fleet.options import FleetOptions
    from caudal.machine import available_memory
    from caudal.workers.launcher import ServingOptions
    from caudal.workers.worker_launcher import WorkerLauncher

    offers = [
        given_offer(
            name,
            names=(),
            adapters={},
            store=store,
            serving=ServingOptions(),
            pinned=len(named) == 1,
            keep_alive=FOREVER,
        )
        for name in named
    ]
    memory = int(available_memory() * MEMORY_SHARE)
    fleet = Fleet(GivenModels(offers), WorkerLauncher(), FleetOptions(memory=memory, load=load))
    try:
        await fleet.start(named)
        yield fleet
    finally:
        await asyncio.shield(fleet.shutdown())
