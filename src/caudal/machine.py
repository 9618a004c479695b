"""What this machine (or container) lets us use: processors and memory."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")

_CPUINFO = Path("/proc/cpuinfo")


def machine_facts() -> dict[str, str]:
    """What a measurement depends on: the processor, how many may be used, memory, the system."""
    return {
        "processor": processor_name(),
        "usable_processors": str(usable_processors()),
        "memory_bytes": str(total_memory()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def processor_name() -> str:
    """What the processor says it is, as far as the system tells."""
    info = processor_info()
    numbers = [info.get(key, "?") for key in ("cpu family", "model", "stepping")]
    name = info.get("model name") or platform.processor() or platform.machine() or "?"
    family = f" (family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})"
    return name + (family if "cpu family" in info else "")


def processor_info() -> dict[str, str]:
    """What Linux says of the first processor, by its names; empty elsewhere."""
    try:
        entry, _, _ = _CPUINFO.read_text().partition("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in entry.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def usable_processors() -> int:
    """Processors that this process may run on, within its affinity mask and its CPU quota."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _cgroup_words("cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        count = min(count, max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    return count


def total_memory() -> int:
    """Bytes of memory that the machine has, or that the container may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup_words("memory.max")
    return min(total, int(limit[0])) if limit and limit[0] != "max" else total


def available_memory() -> int:
    """Bytes that could be taken without swapping, within the container's limit."""
    available = total_memory()
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    limit = _cgroup_words("memory.max")
    if limit and limit[0] != "max":
        used = _cgroup_words("memory.current")
        available = min(available, int(limit[0]) - (int(used[0]) if used else 0))
    return max(available, 0)


def resident_memory() -> int:
    """Bytes of memory that this process alone has now; 0 where the system doesn't say."""
    try:
        words = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE")


def _cgroup_words(name: str) -> list[str]:
    try:
        return (_CGROUP / name).read_text().split()
    except OSError:  # no cgroup v2, or not readable: no limit that we could know
        return []
