"""Debian's `docker-registry`: fetched without being installed, and run on this machine.

`python -m support.docker_registry` fetches it into .clients/, where the system hasn't got it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from support.debian_packages import fetch_package, find_program

USER, PASSWORD = "anna", "s3cret"
_HTPASSWD = f"{USER}:$2b$05$8KYMhxIDFhUFX3vim/NVTekmtf.iztLdLXZrbN5WpUHo2VGaNznGu\n"
_CONFIGURATION = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {folder}/storage}}
http: {{addr: 127.0.0.1:{port}}}
"""


def program() -> Path | None:
    """The registry's program, if it is here."""
    return find_program("docker-registry", "docker-registry")


@contextlib.contextmanager
def docker_registry(folder: Path, *, locked: bool) -> Iterator[str]:
    """Run a registry; yields its host.

    Args:
        folder: Where its blobs go.
        locked: Whether it wants a name and a password.
    """
    found = program()
    assert found is not None, "make test-registry fetches it"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = _CONFIGURATION.format(folder=folder, port=port)
    if locked:
        (folder / "htpasswd").write_text(_HTPASSWD)
        text += f"auth: {{htpasswd: {{realm: here, path: {folder}/htpasswd}}}}\n"
    configuration = folder / "config.yml"
    configuration.write_text(text)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([found, "serve", configuration], stdout=log, stderr=log)
    host = f"127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"http://{host}/v2/")
                break
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield host
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Fetch the program."""
    if program() is None:
        fetch_package("docker-registry")


if __name__ == "__main__":
    sys.exit(main())
