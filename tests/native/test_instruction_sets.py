"""The kernels of all instruction sets: right, and the same bits wherever multiply-adds fuse.

A program (`tests/native/cpp`) runs every kernel on fixed inputs and compares the results with
float64. It runs here on this machine, and, by `make test-arm64`, cross-compiled on emulated
processors.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What the emulator's processors can run, best first.
ARM_PROCESSORS = {
    "max,pauth-impdef=on": ["neon_i8mm", "neon_dotprod", "portable"],
    "neoverse-n1": ["neon_dotprod", "portable"],
    "cortex-a72": ["portable"],
}
# Each tool, and the Debian package that has it.
TOOLS = {
    ("cmake",): "cmake",
    ("aarch64-linux-gnu-g++",): "g++-aarch64-linux-gnu",
    ("qemu-aarch64", "qemu-aarch64-static"): "qemu-user",
}
# A build for arm64 takes minutes.
arm64 = [pytest.mark.arm64, pytest.mark.timeout(1200)]


@dataclass
class Report:
    """What the program printed; see `tests/native/cpp/report.h`."""

    tables: list[str] = field(default_factory=list)
    bits: dict[str, dict[str, str]] = field(default_factory=dict)  # by table and case
    checks: dict[str, int] = field(default_factory=dict)  # how many, by table
    failures: list[str] = field(default_factory=list)


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def report_of(*command: str | Path) -> Report:
    report = Report()
    for line in run(*command).splitlines():
        match line.split(maxsplit=4):
            case ["tables", *names]:
                report.tables = " ".join(names).split()
            case ["bits", table, case, value]:
                report.bits.setdefault(table, {})[case] = value
            case ["check", table, _, verdict, _]:
                report.checks[table] = report.checks.get(table, 0) + 1
                if verdict != "ok":
                    report.failures.append(line)
            case _:
                pytest.fail(f"a line that nobody understands: {line}")
    return report


def tool(names: Sequence[str]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def native() -> Report:
    """This machine's report."""
    programs = sorted(ROOT.glob("build/cp*/kernel_report"), key=lambda path: path.stat().st_mtime)
    if not programs:
        pytest.skip("the kernels' report isn't built: run `make build`")
    return report_of(programs[-1])


@pytest.fixture(scope="module")
def arm_program() -> Path:
    """The program for arm64, built with what a wheel is built with."""
    missing = [package for names, package in TOOLS.items() if tool(names) is None]
    if missing:
        pytest.fail(f"testing arm64 kernels needs Debian's packages {', '.join(missing)}")
    build = ROOT / "build" / "arm64"
    run(
        *("cmake", "-S", ROOT, "-B", build),
        *("-DCAUDAL_PYTHON_MODULE=OFF", "-DCAUDAL_KERNEL_REPORT=ON"),
        *("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
        *("-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++", "-DCMAKE_EXE_LINKER_FLAGS=-static"),
    )
    run(
        *("cmake", "--build", build, "--target", "kernel_report"),
        *("--parallel", str(os.cpu_count() or 1)),
    )
    return build / "kernel_report"


@pytest.fixture(scope="module", params=[pytest.param(name, marks=arm64) for name in ARM_PROCESSORS])
def arm(request: pytest.FixtureRequest, arm_program: Path) -> tuple[str, Report]:
    """An emulated processor, and its report on the best of its kernels.

    Emulation takes long, and others have the rest: each runs where nothing better does.
    """
    emulator = tool(("qemu-aarch64", "qemu-aarch64-static"))
    assert emulator is not None
    return request.param, report_of(emulator, "-cpu", request.param, arm_program, "best")


def check(report: Report, tables: Sequence[str]) -> None:
    assert report.failures == []
    assert set(report.checks) == set(report.bits) == set(tables)
    assert min(report.checks.values()) > 500
    families(report)


def families(*reports: Report) -> dict[bool, dict[str, str]]:
    """The bits of the kernels that don't fuse multiply-adds, and those of all that do.

    A set of kernels that differs from another of its kind fails the test.
    """
    bits: dict[bool, dict[str, str]] = {}
    for report in reports:
        for table, of_table in report.bits.items():
            first = bits.setdefault(table != "portable", of_table)
            different = [case for case in first if first[case] != of_table.get(case)]
            assert different == [], f"{table} computes other bits"
    return bits


def test_this_machine(native: Report) -> None:
    check(native, native.tables)


def test_arm64(arm: tuple[str, Report]) -> None:
    processor, report = arm
    assert report.tables == ARM_PROCESSORS[processor]
    check(report, report.tables[:1])


def test_arm64_computes_the_same_bits_as_this_machine(
    arm: tuple[str, Report], native: Report
) -> None:
    bits = families(native, arm[1])
    assert all(len(cases) > 50 for cases in bits.values())
