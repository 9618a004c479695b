"""Measures parts of a selection, and gathers what is found: a report for each number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import cases as all_cases
from benchmarks import files
from benchmarks.cases import GuessCase
from benchmarks.guess_report import GuessRow
from benchmarks.limits import Limits, LimitsError, measure_limits, measure_read
from benchmarks.llama_tools import LlamaToolError
from benchmarks.machine import machine_facts
from benchmarks.measure import CaseResults, Plan, measure
from benchmarks.peers.base import Peer, PeerError
from benchmarks.report import Report, Row, rows_of
from benchmarks.selections import Part
from caudal.errors import CaudalError
from caudal.machine import usable_processors


class Measuring:
    """Measures parts, and gathers a report for each number of threads.

    Args:
        peers: Whom, Caudal first.
        runs: How often.
        output: Where reports are written, after every case, so that an interrupted run leaves what
            it found.
        progress: Told what goes on.
    """

    def __init__(
        self, peers: Sequence[Peer], runs: int, output: Path, progress: Callable[[str], None]
    ) -> None:
        self.reports: dict[int, Gathered] = {}
        self._peers = peers
        self._versions, self._missing = _versions(peers)
        self._runs = runs
        self._output = output
        self._progress = progress

    def measure(self, part: Part) -> None:
        """Measure a part."""
        threads = part.threads or usable_processors()
        gathered = self.reports.get(threads)
        if gathered is None:
            self._progress(f"measuring the machine's limits, threads: {threads}")
            gathered = Gathered(threads, self._runs, self._versions | self._missing)
            self.reports[threads] = gathered
        peers = [peer for peer in self._peers if peer.name not in part.without]
        gathered.titles |= {peer.name: peer.title for peer in peers}
        plan = Plan(
            peers=peers,
            missing=self._missing,
            runs=self._runs,
            threads=threads,
            progress=self._progress,
        )
        cases = [case for case in all_cases.CASES if case.name in part.cases]
        for known in files.KNOWN_FILES:
            if known.name not in part.models:
                continue
            try:
                file = known.prepare()
            except (CaudalError, LlamaToolError) as error:
                self._progress(f"{known.title} is left out: {error}")
                gathered.settings[f"without {known.name}"] = str(error)
                continue
            for results in measure(file, cases, plan):
                gathered.add(results)
                gathered.write(self._output)


class Gathered:
    """What has been found with a number of threads, whose limits are measured first."""

    def __init__(self, threads: int, runs: int, versions: Mapping[str, str]) -> None:
        self.titles: dict[str, str] = {}
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        self.settings = {"started": started, "threads": str(threads), "runs": str(runs)}
        self._threads = threads
        self._versions = versions
        self._machine = machine_facts()
        self._rows: list[Row] = []
        self._guesses: list[GuessRow] = []
        self._limits: Limits | None = None
        self._no_limits: str | None = None
        try:
            self._limits = measure_limits(threads)
        except LimitsError as error:
            self._no_limits = str(error)
        self._read = self._limits.read if self._limits is not None else 0.0

    def add(self, results: CaseResults) -> None:
        """One more case, that has just been measured."""
        if isinstance(results.case, GuessCase):
            self._guesses.append(GuessRow(results))
        around = self._limits
        if around is not None:
            # What memory gives drifts: a case's share is of what it gave before or after it.
            before, self._read = self._read, measure_read(self._threads)
            around = around.with_read(max(before, self._read))
        self._rows.extend(rows_of(results, around))

    def report(self) -> Report:
        """All of it."""
        return Report(
            settings=self.settings,
            machine=self._machine,
            limits=self._limits,
            no_limits=self._no_limits,
            titles=self.titles,
            versions={name: said for name, said in self._versions.items() if name in self.titles},
            rows=self._rows,
            guesses=self._guesses,
        )

    def write(self, directory: Path) -> list[Path]:
        """As Markdown and as JSON."""
        directory.mkdir(parents=True, exist_ok=True)
        stem = self.settings["started"].replace(" ", "_").replace(":", "")
        report = self.report()
        contents = {".md": report.markdown(), ".json": report.to_json()}
        paths = {
            suffix: directory / f"{stem}_threads-{self._threads}{suffix}" for suffix in contents
        }
        for suffix, text in contents.items():
            paths[suffix].write_text(text)
        return list(paths.values())


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
