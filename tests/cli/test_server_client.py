"""What commands say where something else answers than a server that they know."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from caudal.cli import ps as ps_module
from caudal.cli.app import app
from caudal.cli.server_client import DEFAULT_URL


class Stranger(BaseHTTPRequestHandler):
    """Answers all that it is asked with the same."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *arguments: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("command", [["ps"], ["stop", "tiny"]])
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>", "no server of Caudal"),
        (200, b"[]", "no server of Caudal"),
        (200, b'{"models": []}', "no server of Caudal"),
        (404, b'{"detail": "Not Found"}', "answered 404"),
        (401, b'{"error": {"message": "a key is needed"}}', "a key is needed"),
    ],
)
def test_whoever_else_answers_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    command: list[str],
    status: int,
    body: bytes,
    said: str,
):
    monkeypatch.setattr(Stranger, "status", status)
    monkeypatch.setattr(Stranger, "body", body)
    result = CliRunner().invoke(app, [*command, "--url", url])
    assert result.exit_code == 1
    assert said in result.stderr


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", None),
        ("127.0.0.1", "http://127.0.0.1:11434"),
        ("0.0.0.0:8001", "http://127.0.0.1:8001"),
        ("[::1]:8001", "http://[::1]:8001"),
        (":8001", "http://127.0.0.1:8001"),
        ("http://box", "http://box:80"),
        ("https://box/there/", "https://box:443"),
    ],
)
def test_ollamas_variable_is_read_as_it_does(
    monkeypatch: pytest.MonkeyPatch, host: str, url: str | None
):
    monkeypatch.setenv("OLLAMA_HOST", host)
    asked: list[str] = []
    monkeypatch.setattr(ps_module, "ask_server", lambda url, *_, **__: asked.append(url) or {})
    CliRunner().invoke(app, ["stop", "tiny"])
    CliRunner().invoke(app, ["stop", "tiny", "--url", "given"])
    CliRunner().invoke(app, ["stop", "tiny"], env={"CAUDAL_URL": "ours"})
    assert asked == [url or DEFAULT_URL, "given", "ours"]
