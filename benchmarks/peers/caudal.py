"""Caudal itself, from this checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.files import ModelFile
from benchmarks.peers.base import EngineSession, ServerSession, WorkerSession, free_port
from benchmarks.places import ROOT
from benchmarks.processes import Server
from caudal import __version__
from caudal._native import instruction_set


class CaudalPeer:
    """Its engine without HTTP, and `caudal serve` with default settings."""

    name = "caudal"
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

    def engine(self, model: ModelFile, threads: int, max_len: int) -> EngineSession:
        """See `Peer`."""
        command = [sys.executable, "-m", "benchmarks.workers.caudal_worker"]
        command += [str(model.path), str(threads), str(max_len)]
        return WorkerSession(command, f"{self.name}-{model.name}", model.costs.vocab_size)

    def server(
        self, model: ModelFile, threads: int, max_len: int, concurrency: int
    ) -> ServerSession:
        """See `Peer`. Room for keys and values is found by Caudal itself."""
        port = free_port()
        command = [str(Path(sys.executable).with_name("caudal")), "serve", str(model.path)]
        command += ["--port", str(port), "--threads", str(threads)]
        command += ["--served-model-name", model.name]
        return Server(command, f"{self.name}-serve-{model.name}", f"http://127.0.0.1:{port}")
