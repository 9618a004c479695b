"""The server as a process: it starts, is told to stop, and leaves without a trace of an error."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

TESTS = Path(__file__).parents[1]


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "support.fake_server", *arguments],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


def wait_until_refused(url: str) -> None:
    """Until the server takes no more connections: it has seen the first signal."""
    deadline = time.monotonic() + 10
    with contextlib.suppress(httpx.TransportError):
        while time.monotonic() < deadline:
            httpx.get(f"{url}/health")
            time.sleep(0.02)
        pytest.fail("the server still listens")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_and_running_answers_get_their_last_event(number: signal.Signals):
    with server() as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        body = {"model": "fake", "prompt": "x", "max_tokens": None, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(number)
            rest = [line for line in lines if line]
        assert "shut down" in rest[-2]
        assert rest[-1] == "data: [DONE]"
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert errors == ""


def test_a_second_signal_ends_running_answers_at_once():
    with server("patient") as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        body = {"model": "fake", "prompt": "x", "max_tokens": None, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            wait_until_refused(url)
            process.send_signal(signal.SIGINT)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert errors == ""


def test_an_idle_server_stops_at_once():
    with server() as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert errors == ""


def test_a_model_that_cannot_be_loaded_ends_the_process():
    with server("broken") as (process, _):
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
        assert errors == "caudal: cannot load model.gguf: it is broken\n"
