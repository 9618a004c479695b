"""Facts about the machine that belong into a report."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from caudal.machine import processor_info, processor_name, usable_processors

_SHOWN_FLAGS = (
    *("avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("amx_int8", "amx_bf16"),
)


def processor_flags() -> frozenset[str]:
    """What the processor says it can do, in Linux's names; empty where that isn't known."""
    return frozenset(processor_info().get("flags", "").split())


def machine_facts() -> Mapping[str, str]:
    """Processor, memory, system, and how busy it was at the start."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor_name(),
        "instruction sets": ", ".join(f for f in _SHOWN_FLAGS if f in processor_flags()),
        "usable processors": str(usable_processors()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }
