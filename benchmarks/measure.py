"""Runs the cases on one model file: all peers in turn, again and again.

The order turns around with every run, so that a machine that slows down or speeds up favours
nobody; whoever isn't measured is stopped. Medians are taken later, over all runs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_args

from benchmarks.cases import Case, EngineCase, GuessCase, HttpCase, KVType, Metric
from benchmarks.files import ModelFile
from benchmarks.guessing import Drafts, ServerPair, measure_answers, prompts_of
from benchmarks.peers.base import EngineSession, Peer, PeerError, ServerSession
from benchmarks.processes import ProcessError

SessionT = TypeVar("SessionT", EngineSession, ServerSession, ServerPair)

LOAD_SECONDS = 900


class LoadFigures(TypedDict):
    """What came of a load."""

    requests: int
    failed: int
    errors: dict[str, int]
    total_rate: float


@dataclass(slots=True)
class Result:
    """One peer in one case.

    Attributes:
        rates: Tokens per second of each run, by metric.
        requests: Requests sent in all runs; HTTP only.
        failures: Of these, how many failed for which reason.
        missing: Why there are no rates, or None.
        facts: What it says about how it runs this file.
        drafts: Tokens it guessed in all runs, if it tells; guesses only.
    """

    rates: dict[Metric, list[float]] = field(default_factory=dict)
    requests: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    missing: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    drafts: Drafts | None = None

    def add(self, rates: Mapping[Metric, float]) -> None:
        """One more run."""
        for metric, rate in rates.items():
            self.rates.setdefault(metric, []).append(rate)


@dataclass(frozen=True, slots=True)
class CaseResults:
    """All peers in one case, by name."""

    model: ModelFile
    case: Case
    peers: Mapping[str, Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to measure.

    Attributes:
        peers: Whom, Caudal first.
        missing: Why each of them that isn't installed is not.
        runs: How often.
        threads: On how many threads.
        progress: Told what goes on.
    """

    peers: Sequence[Peer]
    missing: Mapping[str, str]
    runs: int
    threads: int
    progress: Callable[[str], None]


def measure(model: ModelFile, cases: Sequence[Case], plan: Plan) -> Iterator[CaseResults]:
    """Measure cases on a file, those without HTTP first."""
    engine_cases = [case for case in cases if isinstance(case, EngineCase)]
    http_cases = [case for case in cases if isinstance(case, HttpCase)]
    guess_cases = [case for case in cases if isinstance(case, GuessCase)]
    for kv_type in get_args(KVType):
        alike = [case for case in engine_cases if case.kv_type == kv_type]
        if alike:
            yield from _measure_engines(model, alike, kv_type, plan)
    if http_cases:
        max_len = max(case.max_len for case in http_cases)
        concurrency = max(case.concurrency for case in http_cases)
        with _sessions(
            plan,
            "'s server",
            lambda peer: peer.server(model, plan.threads, max_len, concurrency, None),
        ) as opened_servers:
            for http_case in http_cases:
                yield _alternate(plan, model, http_case, *opened_servers, _http_run)
    if guess_cases:
        yield from _measure_guesses(model, guess_cases, plan)


def _measure_engines(
    model: ModelFile, cases: Sequence[EngineCase], kv_type: KVType, plan: Plan
) -> Iterator[CaseResults]:
    max_len = max(case.max_len for case in cases)
    with _sessions(
        plan, "", lambda peer: peer.engine(model, plan.threads, max_len, kv_type)
    ) as opened:
        for case in cases:
            yield _alternate(plan, model, case, *opened, _engine_run)


def _measure_guesses(
    model: ModelFile, cases: Sequence[GuessCase], plan: Plan
) -> Iterator[CaseResults]:
    max_len = max(case.max_len for case in cases)
    concurrency = max(case.sequences for case in cases)

    def start(peer: Peer) -> ServerPair:
        alone = peer.server(model, plan.threads, max_len, concurrency, False)
        try:
            with alone.paused():
                return ServerPair(
                    alone, peer.server(model, plan.threads, max_len, concurrency, True)
                )
        except BaseException:
            alone.__exit__()
            raise

    with _sessions(plan, "'s servers, one that guesses and one that doesn't", start) as opened:
        for case in cases:
            yield _alternate(plan, model, case, *opened, _guess_run)


@contextlib.contextmanager
def _sessions(
    plan: Plan, what: str, start: Callable[[Peer], SessionT]
) -> Iterator[tuple[dict[str, SessionT], dict[str, str]]]:
    """Load the model with every peer: sessions by name, and why the others have none."""
    sessions: dict[str, SessionT] = {}
    missing = dict(plan.missing)
    with contextlib.ExitStack() as stack:
        for peer in plan.peers:
            if peer.name in missing:
                continue
            plan.progress(f"loading {peer.title}{what}")
            try:
                session = start(peer)
            except (PeerError, ProcessError) as error:
                missing[peer.name] = str(error)
                continue
            stack.push(session.__exit__)
            sessions[peer.name] = session
        yield sessions, missing


def _alternate(
    plan: Plan,
    model: ModelFile,
    case: Case,
    sessions: Mapping[str, SessionT],
    missing: Mapping[str, str],
    run: Callable[[SessionT, ModelFile, Case, int, Result], None],
) -> CaseResults:
    results = {peer.name: Result(missing=missing.get(peer.name)) for peer in plan.peers}
    for name, session in sessions.items():
        results[name].facts = session.facts
    for number in range(plan.runs + 1):  # the first warms up
        order = list(sessions)[:: 1 if number % 2 else -1]
        for name in order:
            result = results[name]
            if result.missing is not None:
                continue
            plan.progress(f"{model.title}, {case.title}: {name}, run {number} of {plan.runs}")
            try:
                with _only(name, sessions):
                    run(sessions[name], model, case, number, result)
            except (PeerError, ProcessError) as error:
                result.missing = str(error)
    return CaseResults(model, case, results)


@contextlib.contextmanager
def _only(name: str, sessions: Mapping[str, SessionT]) -> Iterator[None]:
    """Pause the others."""
    with contextlib.ExitStack() as stack:
        for other, session in sessions.items():
            if other != name:
                stack.enter_context(session.paused())
        yield


def _engine_run(
    session: EngineSession, model: ModelFile, case: Case, number: int, result: Result
) -> None:
    assert isinstance(case, EngineCase)
    if number > 0:
        result.add(case.rates(session.measure(case, seed=number)))
    elif not session.warms_up_itself:
        session.measure(case, seed=number)


def _guess_run(pair: ServerPair, model: ModelFile, case: Case, number: int, result: Result) -> None:
    assert isinstance(case, GuessCase)
    prompts = prompts_of(model, case, number)
    turns: list[tuple[Metric, ServerSession, ServerSession]] = [
        ("alone", pair.alone, pair.guessing),
        ("guessed", pair.guessing, pair.alone),
    ]
    for metric, server, other in turns[:: 1 if number % 2 else -1]:
        with other.paused():
            rate, drafts = measure_answers(server.url, model.name, prompts, case.temperature)
        if number > 0:
            result.add({metric: rate})
            if metric == "guessed" and drafts is not None:
                result.drafts = drafts if result.drafts is None else result.drafts + drafts


def _http_run(
    session: ServerSession, model: ModelFile, case: Case, number: int, result: Result
) -> None:
    assert isinstance(case, HttpCase)
    # Every run asks for other tokens, or a prefix cache would answer from the run before.
    requests = case.requests if number > 0 else case.concurrency
    report = run_load(session.url, model, case, seed=number, requests=requests)
    if number > 0:
        result.requests += report["requests"]
        result.failures.update(report["errors"])
        result.add({"all": report["total_rate"]})


def run_load(
    url: str, model: ModelFile, case: HttpCase, *, seed: int, requests: int
) -> LoadFigures:
    """Put load on a server from a process of its own.

    Raises:
        PeerError: The load generator failed, or every request did.
    """
    options: Mapping[str, int] = {
        "requests": requests,
        "concurrency": case.concurrency,
        "prompt-tokens": case.prompt_tokens,
        "output-tokens": case.output_tokens,
        "prefixes": case.prefixes,
        "prefix-tokens": case.prefix_tokens,
        "vocab-size": model.costs.vocab_size,
        "seed": seed,
        "warmup": 0,  # the first run is
    }
    command = [str(Path(sys.executable).with_name("caudal")), "bench", "serve", url, model.name]
    command += [f"--{name}={value}" for name, value in options.items()] + ["--json=-"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LOAD_SECONDS
        )
        report = _figures(json.loads(done.stdout)["phases"][0]["summary"])
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"requests were not answered after {LOAD_SECONDS} s") from error
    except (ValueError, LookupError) as error:
        raise PeerError(f"the load generator failed: {done.stderr.strip()[-200:]}") from error
    if report["failed"] == report["requests"]:
        raise PeerError(f"every request failed: {next(iter(report['errors']))}")
    return report


def _figures(summary: dict[str, Any]) -> LoadFigures:
    """Of the summary of a phase of `caudal bench serve`."""
    return {
        "requests": summary["requests"],
        "failed": summary["failed"],
        "errors": {
            f"{kind}: {each['example']}": each["count"] for kind, each in summary["errors"].items()
        },
        "total_rate": summary["total_rate"],
    }
