"""Measure Caudal and every installed peer: `python -m benchmarks.run`; `--help` has the choices."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import typer

from benchmarks import cases as all_cases
from benchmarks import files
from benchmarks.gathering import Measuring
from benchmarks.peers import all_peers
from benchmarks.peers.caudal import CAUDAL
from benchmarks.places import REPORTS
from benchmarks.selections import PUBLISHED, Part
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
        list[int] | None,
        typer.Option(
            min=1, help="For everyone; repeat for more.  [default: the usable processors]"
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All files and cases; hours.")] = False,
    published: Annotated[
        bool, typer.Option("--published", help="The rows of docs/performance.md.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Directory for the reports.")] = REPORTS,
) -> None:
    """Measure Caudal and its peers on the same files, threads and tokens, alternating.

    Without options a quick selection is measured. Leave the machine alone meanwhile.
    """
    if published and (model or case or threads or full):
        raise typer.BadParameter("it says which files, cases and threads", param_hint="--published")
    everything = [item.name for item in files.KNOWN_FILES]
    every_case = [item.name for item in all_cases.CASES]
    parts: Sequence[Part] = (
        PUBLISHED
        if published
        else [
            Part(
                models=model or (everything if full else files.QUICK),
                cases=case or (every_case if full else all_cases.QUICK),
                threads=count,
            )
            for count in threads or [usable_processors()]
        ]
    )
    built = built_peers(peer_dir or [])
    known_peers = all_peers(built)
    wanted = [CAUDAL, *peer, *built] if peer else [item.name for item in known_peers]
    peers = choose(known_peers, wanted, "--peer")
    for part in parts:
        choose(files.KNOWN_FILES, part.models, "--model")
        choose(all_cases.CASES, part.cases, "--case")

    # Ended from outside, it still ends the programs it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    measuring = Measuring(peers, runs, output, _say)
    for part in parts:
        measuring.measure(part)
    for gathered in measuring.reports.values():
        typer.echo(gathered.report().markdown())
        _say(f"written: {', '.join(map(str, gathered.write(output)))}")


def _say(text: str) -> None:
    typer.echo(text, err=True)


if __name__ == "__main__":
    typer.run(run)
