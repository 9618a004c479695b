"""A package index on this machine that serves wheels, and misbehaves on demand."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class LocalIndex:
    """Serves the wheels of a directory as `/simple/PACKAGE/` and `/files/WHEEL`, with ranges.

    Attributes:
        directory: The wheels; add and replace them at will.
        requests: Paths asked for, each with its `Range` header or an empty string.
        statuses: Answers to give to the next requests for files instead of the content.
        drop_after: Closes the connection after so many bytes of each answer with a file.
        hang_after: Stops in the middle after so many bytes of an answer with a file.
        hanging: Set once an answer hangs.
        ignore_ranges: Answers with the whole file, as simple servers do.
        corrupt: Serves files with a byte changed.
        promise_hashes: Whether its pages give the files' hashes.
        credentials: User name and password that are required for everything.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[tuple[str, str]] = []
        self.statuses: list[int] = []
        self.drop_after: int | None = None
        self.hang_after: int | None = None
        self.hanging = threading.Event()
        self._release = threading.Event()
        self.ignore_ranges = False
        self.corrupt = False
        self.promise_hashes = True
        self.credentials: tuple[str, str] | None = None
        index = self

        class Handler(_Handler):
            local = index

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        """What to configure pip with."""
        return f"http://127.0.0.1:{self._server.server_port}/simple"

    @property
    def file_requests(self) -> list[tuple[str, str]]:
        """The requests for wheels."""
        return [request for request in self.requests if request[0].startswith("/files/")]

    def let_go(self) -> None:
        """End hanging, for good."""
        self.hang_after = None
        self._release.set()

    def wait_for_release(self) -> None:
        """Hang until `let_go`."""
        self.hanging.set()
        self._release.wait(timeout=60)

    def close(self) -> None:
        """Stop serving."""
        self.let_go()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    local: LocalIndex
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        index = self.local
        path = unquote(urlsplit(self.path).path)
        index.requests.append((path, self.headers.get("Range", "")))
        if index.credentials is not None:
            expected = base64.b64encode(":".join(index.credentials).encode()).decode()
            if self.headers.get("Authorization") != f"Basic {expected}":
                self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
                return
        _, kind, name, *_ = (*path.split("/"), "", "")
        if kind == "simple":
            self._page(name)
        elif kind == "files" and (index.directory / name).is_file():
            self._file(index.directory / name)
        else:
            self._answer(404, b"not found")

    def _page(self, package: str) -> None:
        pattern = re.compile(re.escape(package.replace("-", "_")) + r"-[^-]+-.*\.whl")
        wheels = [
            path for path in sorted(self.local.directory.iterdir()) if pattern.fullmatch(path.name)
        ]
        if not wheels:
            self._answer(404, b"no such package")
            return
        lines = []
        for path in wheels:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            fragment = f"#sha256={digest}" if self.local.promise_hashes else ""
            lines.append(f'<a href="/files/{path.name}{fragment}">{path.name}</a>')
        self._answer(200, "\n".join(lines).encode(), {"Content-Type": "text/html"})

    def _file(self, path: Path) -> None:
        index = self.local
        if index.statuses:
            self._answer(index.statuses.pop(0), b"")
            return
        content = path.read_bytes()
        if index.corrupt:
            content = content[:100] + bytes([content[100] ^ 0xFF]) + content[101:]
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match is None or index.ignore_ranges:
            self._answer(200, content)
            return
        start = int(match[1])
        if start >= len(content):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        self._answer(
            206,
            content[start:],
            {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"},
        )

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        index = self.local
        is_file = self.path.startswith("/files/") and status in (200, 206)
        if is_file and index.drop_after is not None and index.drop_after < len(body):
            self.wfile.write(body[: index.drop_after])
            self.close_connection = True
        elif is_file and index.hang_after is not None and index.hang_after < len(body):
            self.wfile.write(body[: index.hang_after])
            index.wait_for_release()
            self.close_connection = True
        else:
            self.wfile.write(body)
