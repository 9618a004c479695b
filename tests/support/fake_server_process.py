"""`support.fake_server` as a process of its own, which tests send signals."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def heed_hangups() -> None:
    """Else what runs under nohup would inherit that they are ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def server(
    *arguments: str,
    preexec: Callable[[], object] = heed_hangups,
    stderr: int = subprocess.PIPE,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "support.fake_server", *arguments],
        cwd=TESTS,
        preexec_fn=preexec,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()
