"""The Hugging Face Hub's API as far as its library asks for it, on this machine."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"


class LocalHub:
    """Serves repositories.

    Attributes:
        repositories: Files by path, by repository.
        private: Those of them that need `TOKEN`.
        requests: Method, path and `Range` of everything that was asked for.
        corrupt: Serves files with their first byte changed.
    """

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.private: set[str] = set()
        self.requests: list[tuple[str, str, str]] = []
        self.corrupt = False
        hub = self

        class Handler(_Handler):
            local = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        """What `HF_ENDPOINT` is to be."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def fetched(self) -> list[str]:
        """The files whose content was asked for."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET"]

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    local: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        local, path = self.local, unquote(urlsplit(self.path).path)
        local.requests.append((self.command, path, self.headers.get("Range", "")))
        is_private = any(f"/{name}" in path for name in local.private)
        if is_private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.*)?", path):
            self._describe(match[1])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._file(match[1], match[2])
        else:
            self._answer(404, b"{}")

    def _describe(self, name: str) -> None:
        files = self.local.repositories.get(name)
        if files is None:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        siblings = [
            {
                "rfilename": path,
                "size": len(content),
                "blobId": _git_hash(content),
                **({"lfs": _lfs(content)} if _is_large(path) else {}),
            }
            for path, content in files.items()
        ]
        described = {"id": name, "sha": COMMIT, "siblings": siblings, "tags": []}
        self._answer(200, json.dumps(described | {"cardData": {"license": "mit"}}).encode())

    def _file(self, name: str, path: str) -> None:
        content = self.local.repositories.get(name, {}).get(path)
        if content is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        large = hashlib.sha256(content).hexdigest()
        named = large if _is_large(path) else _git_hash(content)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{named}"'}
        if self.local.corrupt:
            content = bytes([content[0] ^ 0xFF]) + content[1:]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match is None:
            self._answer(200, content, headers)
            return
        start, end = int(match[1]), int(match[2]) + 1
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self._answer(206, content[start:end], headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_large(path: str) -> bool:
    return path.endswith((".gguf", ".safetensors"))


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _lfs(content: bytes) -> dict[str, object]:
    sha256 = hashlib.sha256(content).hexdigest()
    return {"sha256": sha256, "size": len(content), "pointerSize": 130}
