"""Debian's `prometheus`: fetched without being installed, and run on this machine.

`python -m support.debian_prometheus` fetches it into .clients/, where the system hasn't got it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from support.debian_packages import fetch_package, find_program

_CONFIGURATION = """\
global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: caudal
    scheme: https
    tls_config: {{ca_file: "{authority}"}}
    authorization: {{credentials_file: "{key_file}"}}
    static_configs: [{{targets: ["{target}"]}}]
"""


def program(name: str) -> Path | None:
    """`prometheus` or `promtool`, if it is here."""
    return find_program("prometheus", name)


def promtool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run it on a text."""
    found = program("promtool")
    assert found is not None, "make test-prometheus fetches it"
    return subprocess.run([found, *arguments], input=text, capture_output=True, text=True)


class Prometheus:
    """One that runs.

    Args:
        url: Where it is asked.
    """

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=10)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression is now: series with their labels and values."""
        answer = self._http.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def has(self, expression: str) -> bool:
        """Whether an expression has a value that is a number."""
        return any(series["value"][1] != "NaN" for series in self.query(expression))

    def targets(self) -> list[dict[str, Any]]:
        """What it scrapes."""
        found: list[dict[str, Any]] = self._http.get("/api/v1/targets").json()["data"][
            "activeTargets"
        ]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Its groups of rules, and how they are."""
        groups: list[dict[str, Any]] = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return groups

    def close(self) -> None:
        """Ask it no more."""
        self._http.close()


@contextlib.contextmanager
def prometheus(
    folder: Path, *, target: str, authority: Path, key: str, rules: Path
) -> Iterator[Prometheus]:
    """Run Prometheus, which scrapes a server four times a second.

    Args:
        folder: Where its data goes.
        target: The server's address and port.
        authority: Who has signed its certificate.
        key: What the server wants.
        rules: Rules that it evaluates.
    """
    found = program("prometheus")
    assert found is not None, "make test-prometheus fetches it"
    key_file, configuration = folder / "key", folder / "prometheus.yml"
    key_file.write_text(key)
    configuration.write_text(
        _CONFIGURATION.format(rules=rules, key_file=key_file, target=target, authority=authority)
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        found,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    running = Prometheus(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/-/ready").status_code == 200:
                    break
            assert time.monotonic() < deadline, log.read_text()
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield running
    finally:
        running.close()
        process.terminate()
        process.wait()


def main() -> None:
    """Fetch the programs."""
    if program("prometheus") is None or program("promtool") is None:
        fetch_package("prometheus")


if __name__ == "__main__":
    sys.exit(main())
