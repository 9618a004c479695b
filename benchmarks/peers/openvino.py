"""OpenVINO GenAI, which reads GGUF files itself."""

from __future__ import annotations

from benchmarks.cases import KVType
from benchmarks.files import ModelFile
from benchmarks.peers.base import (
    EngineSession,
    PeerError,
    ServerSession,
    WorkerSession,
    package_version,
    venv_python,
)


class OpenVinoPeer:
    """Its continuous batching pipeline; the package has no HTTP server."""

    name = "openvino"
    title = "OpenVINO GenAI"

    def version(self) -> str:
        """The package's version."""
        return package_version(venv_python(self.name), "openvino-genai")

    def engine(
        self, model: ModelFile, threads: int, max_len: int, kv_type: KVType
    ) -> EngineSession:
        """See `Peer`. It keeps keys and values in 8 bits anyway, unless it is told not to."""
        command = [str(venv_python(self.name)), "-m", "benchmarks.workers.openvino_worker"]
        command += [str(model.path), str(threads), str(max_len)]
        return WorkerSession(command, f"{self.name}-{model.name}-{kv_type}", model.costs.vocab_size)

    def server(
        self,
        model: ModelFile,
        threads: int,
        max_len: int,
        concurrency: int,
        guesses: bool | None,
    ) -> ServerSession:
        """There is none.

        Raises:
            PeerError: Always.
        """
        raise PeerError("openvino-genai has no HTTP server")
