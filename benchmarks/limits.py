"""The machine's own limits, measured by `limits.cpp` on as many threads as the peers get."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.places import HOME

_SOURCE = Path(__file__).with_name("limits.cpp")
_COMPILE = ("c++", "-std=c++20", "-O3", "-march=native", "-Wno-ignored-attributes", "-pthread")

INSTRUCTIONS = {
    "read": "memory read",
    "fp32/avx2": "fp32 `vfmadd231ps`, 256 bits",
    "fp32/avx512": "fp32 `vfmadd231ps`, 512 bits",
    "int8/avx2": "int8 `vpmaddubsw` + `vpaddw`, 256 bits",
    "int8/avx512": "int8 `vpmaddubsw` + `vpaddw`, 512 bits",
    "int8/vnni256": "int8 `vpdpbusd`, 256 bits",
    "int8/vnni512": "int8 `vpdpbusd`, 512 bits",
}
"""What each measured rate is of."""


class LimitsError(Exception):
    """The limits can't be measured here."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates by name, as in `INSTRUCTIONS`: bytes or operations per second.

    Where there are several instruction sets, the fastest is the machine's limit.
    """

    rates: Mapping[str, float]

    @property
    def read(self) -> float:
        """Bytes per second."""
        return self.rates["read"]

    @property
    def fp32(self) -> float:
        """Operations per second."""
        return self.rates[self.fastest("fp32")]

    @property
    def int8(self) -> float:
        """Operations per second."""
        return self.rates[self.fastest("int8")]

    def with_read(self, rate: float) -> Limits:
        """The same, but that memory is read at another rate."""
        return Limits({**self.rates, "read": rate})

    def fastest(self, kind: str) -> str:
        """The name of the fastest rate of a kind: `fp32` or `int8`."""
        names = [name for name in self.rates if name.startswith(f"{kind}/")]
        return max(names, key=self.rates.__getitem__)


def measure_limits(threads: int) -> Limits:
    """Compile the program, run it and read its figures.

    Raises:
        LimitsError: There is no C++ compiler, or the program doesn't know this processor.
    """
    HOME.mkdir(exist_ok=True)
    _run([*_COMPILE, str(_SOURCE), "-o", str(_program())])
    return parse_limits(_run([str(_program()), str(threads)]))


def measure_read(threads: int) -> float:
    """Bytes a second at which memory is read now; the program is there already.

    Raises:
        LimitsError: It can't be run.
    """
    name, _, rate = _run([str(_program()), str(threads), "read"]).strip().partition(" ")
    try:
        return {name: float(rate)}["read"]
    except (ValueError, KeyError) as error:
        raise LimitsError(f"not a rate of reading: {name!r}") from error


def _program() -> Path:
    return HOME / "limits"


def _run(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except OSError as error:
        raise LimitsError(f"cannot run {error.filename}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        words = (error.stderr or "").strip().splitlines()[:1] or [f"status {error.returncode}"]
        raise LimitsError(f"{Path(error.cmd[0]).name} failed: {words[0]}") from error


def parse_limits(text: str) -> Limits:
    """Figures from lines of `name rate`.

    Raises:
        LimitsError: A line is something else, or a limit is missing.
    """
    rates: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rate = line.partition(" ")
        try:
            rates[name] = float(rate)
        except ValueError as error:
            raise LimitsError(f"not a rate: {line!r}") from error
    for kind in ("read", "fp32/avx2", "int8/avx2"):
        if rates.get(kind, 0) <= 0:
            raise LimitsError(f"no rate for {kind}")
    return Limits(rates)
