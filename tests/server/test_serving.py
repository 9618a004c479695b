"""The server as a process: it starts, is told to stop, and leaves without a trace of an error."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import ssl
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from support.certificates import Authority, Pair
from support.fake_server_process import heed_hangups, server
from support.raw_client import connect, post


def wait_until_draining(url: str) -> None:
    """Until the server says that it takes no more requests: it has seen the first signal."""
    deadline = time.monotonic() + 10
    while httpx.get(f"{url}/ready").status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert httpx.get(f"{url}/ready").json() == {"status": "draining"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


def test_while_answers_end_it_listens_and_sends_new_work_elsewhere():
    with server("patient") as (process, url), httpx.Client(base_url=url, timeout=20) as client:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert client.get("/ready").json() == {"status": "ok"}
        body = {"model": "fake", "prompt": "x", "max_tokens": 100, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            wait_until_draining(url)
            while httpx.post(f"{url}/v1/completions", json={}).status_code != 503:
                time.sleep(0.02)  # it says so a moment before it refuses anything
            refused = client.post("/v1/completions", json=body)  # on a connection kept from before
            assert refused.status_code == 503
            assert refused.headers["connection"] == "close"
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "server_draining"
            overloaded = client.post("/v1/messages", json={})
            assert overloaded.json()["error"]["type"] == "overloaded_error"
            assert client.get("/health").status_code == 200
            text = [line for line in lines if line]
        assert sum('"text":"x' in line for line in text) >= 99
        assert text[-1] == "data: [DONE]"
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert errors == ""


def test_with_notice_given_what_still_comes_is_answered():
    with server("notice") as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        wait_until_draining(url)
        body = {"model": "fake", "prompt": "x", "max_tokens": 2}
        answer = httpx.post(f"{url}/v1/completions", json=body).json()
        assert answer["choices"][0]["text"] == "xx"
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert errors == ""


def test_a_second_address_in_ollamas_place():
    with server("ollama") as (process, url):
        assert process.stdout is not None
        second = f"http://127.0.0.1:{int(process.stdout.readline())}"
        assert httpx.get(second).text == "Ollama is running"
        assert httpx.get(url).text.startswith("Caudal is running.")
        assert process.stdout.readline() == "ready\n"
        assert httpx.get(f"{second}/api/version").json() == httpx.get(f"{url}/api/version").json()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")


def test_a_second_signal_ends_running_answers_at_once():
    with server("patient") as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        body = {"model": "fake", "prompt": "x", "max_tokens": None, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            wait_until_draining(url)
            process.send_signal(signal.SIGINT)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert errors == ""


def completion(**fields: object) -> bytes:
    body = {"model": "fake", "prompt": "x", "max_tokens": None} | fields
    return post("/v1/completions", json.dumps(body).encode())


@pytest.mark.parametrize(
    ("request_bytes", "receive_buffer"),
    [
        (b"", None),
        (b"\r\n", None),
        (b"GET /health HTTP/1.1\r\nHost: ", None),
        (completion()[:-1], None),
        (completion(), None),
        (completion(stream=True, logprobs=20, n=8), 2048),
        (b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10, 2048),
    ],
    ids=["silent", "no line", "half headers", "half a body", "waits", "reads nothing", "pipelines"],
)
def test_no_client_keeps_it_from_stopping(request_bytes: bytes, receive_buffer: int | None):
    with server() as (process, url), contextlib.ExitStack() as stack:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(4):
            sock = stack.enter_context(connect(url, receive_buffer=receive_buffer))
            sock.sendall(request_bytes)
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert errors == ""
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_model_that_still_loads_does_not_keep_it_from_stopping(number: signal.Signals):
    with server("slow") as (process, url):
        assert httpx.get(f"{url}/health").status_code == 503
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "ending without it" in errors


def test_under_nohup_a_terminal_may_close():
    with server(preexec=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_hangup_has_everything_be_read_anew_under_running_answers():
    with server("reloads") as (process, url):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        body = {"model": "fake", "prompt": "x", "max_tokens": 60, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "reloaded\n"
            assert [line for line in lines if line][-1] == "data: [DONE]"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "nothing: unchanged, since it can't be used: a file, line 3: it makes no" in errors


def test_a_hangup_opens_the_audit_log_and_reads_certificates(tmp_path: Path):
    authority = Authority(tmp_path)
    audit, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"

    def use(pair: Pair) -> None:
        (tmp_path / "used.crt").write_bytes(pair.certificate.read_bytes())
        (tmp_path / "used.key").write_bytes(pair.key.read_bytes())

    use(authority.pair("first"))
    with server(f"files={tmp_path}") as (process, url):
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        port = int(url.rpartition(":")[2])

        def ask() -> str:
            with httpx.Client(verify=authority.trusting()) as client:
                body = {"prompt": "x", "max_tokens": 2}
                answer = client.post(f"https://127.0.0.1:{port}/v1/completions", json=body)
            return answer.headers["x-request-id"]

        asked = [ask()]
        until(lambda: asked[0] in audit.read_text())
        audit.rename(moved)
        second = authority.pair("second")
        use(second)
        process.send_signal(signal.SIGHUP)
        lines = [json.loads(process.stderr.readline())]
        while "certificates" not in lines[-1]["message"]:
            lines.append(json.loads(process.stderr.readline()))
        assert lines[-1]["message"] == "reload: certificates: read anew"
        shown = ssl.get_server_certificate(("127.0.0.1", port))
        assert shown.strip() == second.certificate.read_text().strip()
        asked.append(ask())
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    lines += map(json.loads, errors.splitlines())
    ended = [line["request_id"] for line in lines if line.get("outcome") == "length"]
    assert ended == asked
    for file, identity in zip((moved, audit), asked, strict=True):
        [line] = file.read_text().splitlines()
        assert json.loads(line)["request_id"] == identity


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_where_the_terminal_closes_nothing_is_read_anew():
    ours, its = os.openpty()

    def take_terminal() -> None:
        heed_hangups()
        os.setsid()
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)

    with server("reloads", preexec=take_terminal) as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.close(its)
        os.close(ours)  # the system sends SIGHUP
        assert process.wait(20) == 0
        assert process.stdout.read() == ""


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


@contextlib.contextmanager
def unread_pipe() -> Iterator[int]:
    """The end to write to of a pipe in which there is no more room."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 1000)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x")
        os.set_blocking(writing, True)
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


def stop_while_a_thread_works(process: subprocess.Popen[str], url: str) -> int:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with connect(url) as sock:
        sock.sendall(post("/tokenize", json.dumps({"prompt": "x" * 10_000}).encode()))
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        return process.wait(30)


def test_a_thread_that_works_for_nobody_does_not_keep_it_from_stopping():
    with server("stuck") as (process, url):
        assert stop_while_a_thread_works(process, url) == 0
        assert "Traceback" not in process.communicate()[1]


def test_a_log_that_nobody_reads_does_not_keep_it_from_stopping():
    with unread_pipe() as pipe, server("stuck", stderr=pipe) as (process, url):
        assert stop_while_a_thread_works(process, url) == 0
