"""The clients' keys, in a file that changes while the server runs."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from caudal.tenants.keys import digest_of, new_key


class Keys:
    """A file of keys, and the keys themselves.

    Args:
        path: Of the file.
        limited_rpm: Requests per minute of the key that has such a limit.

    Attributes:
        path: Of the file.
        admin: A key that may do everything.
        polite: The key of most clients.
        limited: The key that has a limit.
        limited_rpm: The limit.
        admitted: When each of its requests was sent and answered that were let in.
    """

    def __init__(self, path: Path, *, limited_rpm: int) -> None:
        self.path = path
        self.limited_rpm = limited_rpm
        self.admitted: list[tuple[float, float]] = []
        self._lock = threading.Lock()
        self._tables: dict[str, str] = {}
        self.admin, self.polite, self.limited = new_key(), new_key(), new_key()
        self._set("admin", self.admin, "admin = true")
        self._set("polite", self.polite, "")
        self._set("limited", self.limited, f"requests_per_minute = {limited_rpm}")

    def add(self, generator: random.Random) -> tuple[str, str]:
        """A new key, and its name."""
        key = new_key()
        name = f"guest-{generator.randrange(10**9)}"
        self._set(name, key, "")
        return name, key

    def revoke(self, name: str) -> None:
        """Take a key away."""
        with self._lock:
            del self._tables[name]
            self._write()

    def _set(self, name: str, key: str, rules: str) -> None:
        with self._lock:
            digest = digest_of(key.encode()).hex()
            self._tables[name] = f'[keys.{name}]\nhash = "sha256:{digest}"\n{rules}\n'
            self._write()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(self._tables.values()))
        new.replace(self.path)
