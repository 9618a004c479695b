"""The machine's own limits, measured by `limits.cpp` on as many threads as the peers get."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
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
    program = HOME / "limits"
    try:
        subprocess.run(
            [*_COMPILE, str(_SOURCE), "-o", str(program)],
            check=True,
            capture_output=True,
            text=True,
        )
        done = subprocess.run(
            [str(program), str(threads)], check=True, capture_output=True, text=True
        )
    except OSError as error:
        raise LimitsError(f"cannot run {error.filename}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        words = (error.stderr or "").strip().splitlines()[:1] or [f"status {error.returncode}"]
        raise LimitsError(f"{Path(error.cmd[0]).name} failed: {words[0]}") from error
    return parse_limits(done.stdout)


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
