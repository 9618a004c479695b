"""Clients that don't keep to HTTP: bytes on a socket."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import httpx

GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(url: str, *, receive_buffer: int | None = None) -> socket.socket:
    """A connection to a server, whose kernel keeps so many bytes that aren't read."""
    parts = urlsplit(url)
    sock = socket.socket()
    sock.settimeout(10)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect((parts.hostname, parts.port))
    return sock


def post(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    """A request with a JSON body; its length is announced unless `headers` say otherwise."""
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json"]
    if not any(line.lower().startswith("transfer-encoding") for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def read_all(sock: socket.socket) -> bytes:
    """Everything until the server closes.

    Raises:
        TimeoutError: It does not.
    """
    received = b""
    try:
        while data := sock.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def exchange(url: str, *pieces: bytes) -> bytes:
    """Send the pieces, and read until the server closes."""
    with connect(url) as sock:
        for piece in pieces:
            sock.sendall(piece)
        return read_all(sock)


def parse_response(data: bytes) -> httpx.Response:
    """The first response in these bytes, a chunked body left as it is."""
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines]
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)  # type: ignore[arg-type]
