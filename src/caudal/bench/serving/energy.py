"""Energy that the machine's processors took, where it says so (RAPL)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

POWERCAP = Path("/sys/class/powercap")

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Energy:
    """Counters of this machine's processor packages.

    Args:
        url: The server that is measured: if it isn't on this machine, they say nothing about it.
        folder: Where Linux has them.

    Attributes:
        missing: Why there are none; None if there are.
    """

    def __init__(self, url: str, folder: Path = POWERCAP) -> None:
        self._counters: Mapping[Path, int] = {}
        self.missing: str | None = None
        if (urlsplit(url).hostname or "") not in _LOOPBACK:
            self.missing = "the server is on another machine"
            return
        found = {
            zone: int(limit)
            for zone in sorted(folder.glob("*"))
            if (_read(zone / "name") or "").startswith("package")
            and (limit := _read(zone / "max_energy_range_uj")) is not None
            and _read(zone / "energy_uj") is not None
        }
        if not found:
            self.missing = f"this machine has no counters that can be read in {folder}"
        self._counters = found

    def read(self) -> Mapping[Path, int]:
        """The counters now, in microjoules."""
        return {zone: int(_read(zone / "energy_uj") or 0) for zone in self._counters}

    def joules_since(self, before: Mapping[Path, int]) -> float | None:
        """Joules since they were read; None without counters."""
        if not self._counters:
            return None
        now = self.read()
        return sum((now[z] - before[z]) % (limit + 1) for z, limit in self._counters.items()) / 1e6


def _read(path: Path) -> str | None:
    """A file's line; None where it isn't there, or only for root."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
