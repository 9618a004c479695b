"""`make fuzz SECONDS=60 TARGET=gguf`: mutate inputs of every target, or of one, for some time."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from fuzz.targets import TARGETS

KEPT = Path(".fuzz")
"""Where inputs that reached new code, and those that found faults, are kept."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--target", choices=TARGETS, help="default: all")
    parser.add_argument("--reproduce", type=Path, help="try one file instead; needs --target")
    options = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("Fuzzing needs Atheris (pip install atheris), which is made for Linux on x86-64.")
        return 2
    if options.reproduce is not None:
        if options.target is None:
            parser.error("--reproduce needs --target")
        return _child(options.target, str(options.reproduce.absolute())).wait()
    names = [options.target] if options.target else list(TARGETS)
    return max([_fuzz(name, options.seconds) for name in names])


def _fuzz(name: str, seconds: int) -> int:
    """Run one target and say what came of it; returns 1 if it found something."""
    process = _child(name, str(seconds), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate()
    text = said.decode(errors="replace")
    runs = re.findall(r"stat::number_of_executed_units: *(\d+)", text)
    covered = re.findall(r"cov: (\d+)", text)
    summary = f"{runs[-1] if runs else '?'} inputs, {covered[-1] if covered else '?'} edges"
    found = re.findall(r"Test unit written to (\S+)", text)
    if process.returncode == 0:
        print(f"{name:<16} {summary}: nothing found", flush=True)
        return 0
    _, exception, report = text.rpartition("=== Uncaught Python exception: ===")
    print(f"{name:<16} {summary}: failed with status {process.returncode}")
    print(report if exception else text[-4000:])
    for path in found:
        print(f"\nTry it again: make fuzz TARGET={name} INPUT={path}", flush=True)
    return 1


def _child(
    name: str, what: str, *, stdout: int | None = None, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """The target's process."""
    tests = str(Path(__file__).parent.parent)
    return subprocess.Popen(
        [
            sys.executable, "-m", "fuzz.child", name, what,
            str(KEPT / "corpus" / name), str(KEPT / "findings" / name),
        ],
        env=os.environ | {"PYTHONPATH": tests, "RUST_BACKTRACE": "0"},
        stdout=stdout,
        stderr=stderr,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
