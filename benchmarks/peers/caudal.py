"""Caudal itself, from this checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.cases import KVType
from benchmarks.files import ModelFile
from benchmarks.peers.base import (
    EngineSession,
    ServerSession,
    WorkerSession,
    free_port,
    server_log,
)
from benchmarks.places import ROOT
from benchmarks.processes import Server
from caudal import __version__
from caudal._native import instruction_set

CAUDAL = "caudal"
"""Its name among its peers."""


class CaudalPeer:
    """Its engine without HTTP, and `caudal serve` with default settings."""

    name = CAUDAL
    title = "Caudal"

    def version(self) -> str:
        """The version, the commit where this is a checkout, and the kernels for this machine."""
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        commit = described.stdout.strip() or "not a checkout"
        return f"caudal {__version__} ({commit}, {instruction_set()} kernels)"

    def engine(
        self, model: ModelFile, threads: int, max_len: int, kv_type: KVType
    ) -> EngineSession:
        """See `Peer`."""
        command = [sys.executable, "-m", "benchmarks.workers.caudal_worker"]
        command += [str(model.path), str(threads), str(max_len), kv_type]
        log = f"{self.name}-{model.name}-{kv_type}"
        return WorkerSession(command, log, model.costs.vocab_size)

    def server(
        self,
        model: ModelFile,
        threads: int,
        max_len: int,
        concurrency: int,
        guesses: bool | None,
    ) -> ServerSession:
        """See `Peer`. Room for keys and values is found by Caudal itself."""
        port = free_port()
        command = [str(Path(sys.executable).with_name("caudal")), "serve", str(model.path)]
        command += ["--port", str(port), "--threads", str(threads)]
        command += ["--served-model-name", model.name]
        if guesses is not None:
            command += ["--speculative", "ngram" if guesses else "off"]
        log = server_log(self.name, model.name, guesses)
        return Server(command, log, f"http://127.0.0.1:{port}")
