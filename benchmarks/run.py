"""Measure Caudal and every installed peer: `python -m benchmarks.run`; `--help` has the choices."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import typer

from benchmarks import cases as all_cases
from benchmarks import files
from benchmarks.limits import LimitsError, measure_limits, measure_read
from benchmarks.llama_tools import LlamaToolError
from benchmarks.machine import machine_facts
from benchmarks.measure import Plan, measure
from benchmarks.peers import all_peers
from benchmarks.peers.base import Peer, PeerError
from benchmarks.places import REPORTS
from benchmarks.report import CAUDAL, Report, Row, rows_of
from caudal.errors import CaudalError
from caudal.machine import usable_processors


class _Named(Protocol):
    @property
    def name(self) -> str: ...


NamedT = TypeVar("NamedT", bound=_Named)


def choose(known: Sequence[NamedT], wanted: Sequence[str], option: str) -> list[NamedT]:
    """Those that are wanted, in the order known.

    Raises:
        typer.BadParameter: One is not known.
    """
    names = [item.name for item in known]
    for name in wanted:
        if name not in names:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(names)}", param_hint=option)
    return [item for item in known if item.name in wanted]


def built_peers(wanted: Sequence[str]) -> dict[str, Path]:
    """Directories by the names of the peers whose programs they have, from `NAME=DIR`.

    Raises:
        typer.BadParameter: One is something else, or is named as another peer.
    """
    built: dict[str, Path] = {}
    known = {peer.name for peer in all_peers()}
    for text in wanted:
        name, _, directory = text.partition("=")
        if not name or not directory:
            raise typer.BadParameter(f"{text!r} is not NAME=DIR", param_hint="--peer-dir")
        if name in known | built.keys():
            raise typer.BadParameter(f"there is a {name} already", param_hint="--peer-dir")
        built[name] = Path(directory).expanduser().resolve()
    return built


def run(
    model: Annotated[list[str] | None, typer.Option(help="A file; repeat for more.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="A case; repeat for more.")] = None,
    peer: Annotated[list[str] | None, typer.Option(help="A peer; repeat for more.")] = None,
    peer_dir: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR",
            help="Measure a llama.cpp or ik_llama.cpp too whose programs are there; repeat.",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="How often; medians are reported.")] = 3,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="For everyone.  [default: the usable processors]"),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All files and cases; hours.")] = False,
    output: Annotated[Path, typer.Option(help="Directory for the reports.")] = REPORTS,
) -> None:
    """Measure Caudal and its peers on the same files, threads and tokens, alternating.

    Without options a quick selection is measured. Leave the machine alone meanwhile.
    """
    everything = [item.name for item in files.KNOWN_FILES]
    chosen_files = choose(
        files.KNOWN_FILES, model or (everything if full else files.QUICK), "--model"
    )
    every_case = [item.name for item in all_cases.CASES]
    chosen_cases = choose(
        all_cases.CASES, case or (every_case if full else all_cases.QUICK), "--case"
    )
    built = built_peers(peer_dir or [])
    known_peers = all_peers(built)
    wanted = [CAUDAL, *peer, *built] if peer else [item.name for item in known_peers]
    peers = choose(known_peers, wanted, "--peer")
    count = threads or usable_processors()

    # Ended from outside, it still ends the programs it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    machine = machine_facts()
    _say("measuring the machine's limits")
    try:
        limits, no_limits = measure_limits(count), None
    except LimitsError as error:
        limits, no_limits = None, str(error)
    versions, missing = _versions(peers)
    plan = Plan(peers=peers, missing=missing, runs=runs, threads=count, progress=_say)
    read = limits.read if limits is not None else 0.0
    settings = {"started": started, "threads": str(count), "runs": str(runs)}
    rows: list[Row] = []

    def report() -> Report:
        return Report(
            settings=settings,
            machine=machine,
            limits=limits,
            no_limits=no_limits,
            titles={item.name: item.title for item in peers},
            versions=versions | missing,
            rows=rows,
        )

    for known in chosen_files:
        try:
            file = known.prepare()
        except (CaudalError, LlamaToolError) as error:
            _say(f"{known.title} is left out: {error}")
            settings[f"without {known.name}"] = str(error)
            continue
        for results in measure(file, chosen_cases, plan):
            around = limits
            if limits is not None:
                # What memory gives drifts: a case's share is of what it gave before or after it.
                before, read = read, measure_read(count)
                around = limits.with_read(max(before, read))
                name = f"memory read around {results.case.name}, {known.name}"
                settings[name] = f"{around.read / 1e9:.1f} GB/s"
            rows.extend(rows_of(results, around))
            # After every case, so that an interrupted run leaves what it found.
            _write(report(), output, started)
    written = _write(report(), output, started)
    typer.echo(report().markdown())
    _say(f"written: {', '.join(map(str, written))}")


def _versions(peers: Sequence[Peer]) -> tuple[dict[str, str], dict[str, str]]:
    """What is installed, and why the rest is not."""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for peer in peers:
        try:
            versions[peer.name] = peer.version()
        except PeerError as error:
            missing[peer.name] = str(error)
    return versions, missing


def _write(report: Report, directory: Path, started: str) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    stem = started.replace(" ", "_").replace(":", "")
    contents: Mapping[str, str] = {".md": report.markdown(), ".json": report.to_json()}
    for suffix, text in contents.items():
        (directory / stem).with_suffix(suffix).write_text(text)
    return [(directory / stem).with_suffix(suffix) for suffix in contents]


def _say(text: str) -> None:
    typer.echo(text, err=True)


if __name__ == "__main__":
    typer.run(run)
