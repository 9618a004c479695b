"""What the benchmark needs of a program that it measures."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from benchmarks.cases import EngineCase, KVType, Timing
from benchmarks.files import ModelFile
from benchmarks.places import VENVS
from benchmarks.processes import Worker


class PeerError(Exception):
    """A peer isn't installed or can't do what is asked; the report says why in its place."""


class EngineSession(Protocol):
    """A model ready to be timed without HTTP. A context manager."""

    warms_up_itself: bool
    """Whether a measurement includes an unmeasured run of its own."""

    facts: Mapping[str, str]
    """What the program says about how it runs."""

    def measure(self, case: EngineCase, seed: int) -> Timing:
        """Time a case.

        Raises:
            PeerError, ProcessError: It can't run it.
        """

    def paused(self) -> AbstractContextManager[None]:
        """Take no processor time meanwhile."""

    def __enter__(self) -> EngineSession: ...
    def __exit__(self, *_: object) -> None: ...


class ServerSession(Protocol):
    """A running server. A context manager."""

    url: str
    """Without `/v1`."""

    facts: Mapping[str, str]
    """What the program says about how it runs."""

    def paused(self) -> AbstractContextManager[None]:
        """Take no processor time meanwhile."""

    def __enter__(self) -> ServerSession: ...
    def __exit__(self, *_: object) -> None: ...


class Peer(Protocol):
    """A program. `name` is for the command line, `title` for the report."""

    name: str
    title: str

    def version(self) -> str:
        """What is installed.

        Raises:
            PeerError: Nothing is.
        """

    def engine(
        self, model: ModelFile, threads: int, max_len: int, kv_type: KVType
    ) -> EngineSession:
        """Load a model.

        Args:
            model: The file.
            threads: Threads that compute.
            max_len: Tokens of the longest sequence.
            kv_type: How keys and values are kept.

        Raises:
            PeerError, ProcessError: It can't.
        """

    def server(
        self,
        model: ModelFile,
        threads: int,
        max_len: int,
        concurrency: int,
        guesses: bool | None,
    ) -> ServerSession:
        """Serve a model; it answers to the file's name.

        Args:
            model: The file.
            threads: Threads that compute.
            max_len: Tokens of the longest sequence.
            concurrency: Requests at once.
            guesses: Whether it guesses tokens by looking up what followed the same text; None: as
                it does unless it is told.

        Raises:
            PeerError, ProcessError: It can't.
        """


class WorkerSession(Worker):
    """An engine session whose model lives in one of `benchmarks.workers`."""

    warms_up_itself = False

    def __init__(
        self,
        command: list[str],
        log: str,
        vocab_size: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(command, log, environment)
        self._vocab_size = vocab_size

    def measure(self, case: EngineCase, seed: int) -> Timing:
        """Time a case; see `EngineSession`."""
        done = self.ask(
            {
                "sequences": case.sequences,
                "prompt_tokens": case.prompt_tokens,
                "generated": case.generated,
                "vocab_size": self._vocab_size,
                "seed": seed,
            }
        )
        wanted = case.sequences * case.generated
        if done["generated"] != wanted:
            raise PeerError(f"generated {done['generated']} of {wanted} tokens")
        return Timing(done["first"], done["total"])


def venv_python(peer: str) -> Path:
    """The interpreter of a peer's environment.

    Raises:
        PeerError: There is no such environment.
    """
    python = VENVS / peer / "bin" / "python"
    if not python.exists():
        raise PeerError(f"not installed (python -m benchmarks.setup_peers {peer})")
    return python


def evaluate(python: Path, expression: str) -> str:
    """What an expression prints in a peer's environment.

    Raises:
        PeerError: It fails.
    """
    done = subprocess.run(
        [str(python), "-c", f"print({expression})"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()[-1:] or ["it does not run"]
        raise PeerError(f"not installed properly: {words[0]}")
    return done.stdout.strip()


def package_version(python: Path, package: str) -> str:
    """`package version`, as installed in a peer's environment.

    Raises:
        PeerError: It isn't.
    """
    version = evaluate(python, f"__import__('importlib.metadata').metadata.version({package!r})")
    return f"{package} {version}"


def server_log(peer: str, model: str, guesses: bool | None) -> str:
    """The name of a server's log. Those with and without guesses run beside each other."""
    kind = {None: "serve", False: "serve-alone", True: "serve-guesses"}[guesses]
    return f"{peer}-{kind}-{model}"


def free_port() -> int:
    """A port that nothing listens on right now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
