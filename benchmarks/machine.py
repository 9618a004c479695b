"""Facts about the machine that belong into a report."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from caudal.machine import usable_processors

_CPUINFO = Path("/proc/cpuinfo")
_SHOWN_FLAGS = (
    *("avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("amx_int8", "amx_bf16"),
)


def processor_flags() -> frozenset[str]:
    """What the processor says it can do, in Linux's names; empty where that isn't known."""
    return frozenset(_cpuinfo().get("flags", "").split())


def machine_facts() -> Mapping[str, str]:
    """Processor, memory, system, and how busy it was at the start."""
    info = _cpuinfo()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers = [info.get(key, "?") for key in ("cpu family", "model", "stepping")]
    return {
        "processor": f"{info.get('model name', platform.processor() or '?')} "
        f"(family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})",
        "instruction sets": ", ".join(f for f in _SHOWN_FLAGS if f in processor_flags()),
        "usable processors": str(usable_processors()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry."""
    if not _CPUINFO.exists():
        return {}
    entry, _, _ = _CPUINFO.read_text().partition("\n\n")
    pairs = (line.partition(":") for line in entry.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
