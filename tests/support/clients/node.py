"""Runs tests in JavaScript against a server."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.clients.home import Finished, Home
from support.clients.server import ClientServer


def run_node_tests(home: Home, file: Path, server: ClientServer, **environment: str) -> Finished:
    """Run a file with Node's own test runner; `CAUDAL_URL` and `CAUDAL_KEY` tell the server."""
    shutil.copy(file, home.project)
    (home.project / "node_modules").symlink_to(home.programs.node_modules)
    return home.run(
        ["node", "--test", "--test-reporter=spec", file.name],
        {"CAUDAL_URL": server.url, "CAUDAL_KEY": server.key, **environment},
        timeout=240,
    )
