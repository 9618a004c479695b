"""A registry on this machine (OCI's distribution), which lies and breaks off on demand."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MODEL = "application/vnd.ollama.image.model"
CONFIG = "application/vnd.docker.container.image.v1+json"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class LocalRegistry:
    """Keeps what is pushed, and serves it with ranges, over HTTP.

    Attributes:
        blobs: Content by digest, the same in all repositories.
        repositories: Which blobs a repository has.
        manifests: Bytes by repository and tag or digest.
        requests: Method, path and `Range` or `Content-Range` of everything asked for.
        authorizations: What came along as `Authorization`, each with its path.
        statuses: Answers to give to the next requests for blobs' content or uploads' parts.
        retry_after: Seconds that come with them.
        drop_after: Closes the connection after so many bytes of a blob, in or out.
        hang_after: Stops after so many bytes of a blob, in or out, until `let_go`.
        hanging: Set once an answer hangs.
        ignore_ranges: Answers with whole blobs.
        corrupt: Serves blobs with their first byte changed.
        surplus: Bytes more than there are in every blob's answer.
        unmeasured: Blobs come without `Content-Length`.
        moved_to: Where blobs are asked for instead.
        basic: User name and password that everything needs.
        bearer: Needs tokens; with user name and password where `token_for` is set.
        token_for: User name and password that tokens are given for; anybody where None.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.repositories: dict[str, set[str]] = {}
        self.manifests: dict[tuple[str, str], bytes] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.authorizations: list[tuple[str, str]] = []
        self.uploads: dict[str, bytearray] = {}
        self.statuses: list[int] = []
        self.retry_after = ""
        self.drop_after: int | None = None
        self.hang_after: int | None = None
        self.hanging = threading.Event()
        self._release = threading.Event()
        self.ignore_ranges = False
        self.corrupt = False
        self.surplus = b""
        self.unmeasured = False
        self.moved_to = ""
        self.basic: tuple[str, str] | None = None
        self.bearer = False
        self.token_for: tuple[str, str] | None = None
        self.tokens: dict[str, str] = {}
        registry = self

        class Handler(_Handler):
            local = registry

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def host(self) -> str:
        """What names of its models begin with."""
        return f"127.0.0.1:{self._server.server_port}"

    def add(self, repository: str, tag: str, *layers: tuple[str, bytes], **config: Any) -> str:
        """Put a model there; returns its manifest's digest."""
        described = {"model_format": "gguf", "model_family": "llama", **config}
        entries = [
            self.entry(repository, CONFIG, json.dumps(described).encode()),
            *(self.entry(repository, kind, content) for kind, content in layers),
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": entries[0],
            "layers": entries[1:],
        }
        return self.put_manifest(repository, tag, json.dumps(manifest, indent=1).encode())

    def entry(self, repository: str, kind: str, content: bytes) -> Mapping[str, Any]:
        """Put a blob there; returns what manifests say of it."""
        digest = digest_of(content)
        self.blobs[digest] = content
        self.repositories.setdefault(repository, set()).add(digest)
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def put_manifest(self, repository: str, tag: str, content: bytes) -> str:
        """Put a manifest there, whatever is in it; returns its digest."""
        self.manifests[repository, tag] = content
        self.manifests[repository, digest_of(content)] = content
        return digest_of(content)

    def asked(self, method: str, part: str) -> Sequence[str]:
        """The ranges of all requests whose path has a part."""
        return [at for how, path, at in self.requests if how == method and part in path]

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


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Whoever asked has gone, as some tests want it."""


class _Handler(BaseHTTPRequestHandler):
    local: LocalRegistry
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        local = self.local
        parts = urlsplit(self.path)
        self.asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = parts.path.replace("%3A", ":")
        at = self.headers.get("Range") or self.headers.get("Content-Range") or ""
        local.requests.append((self.command, path, at))
        local.authorizations.append((path, self.headers.get("Authorization", "")))
        if path == "/token":
            self._token()
        elif path.startswith("/cdn/"):
            self._blob(path.removeprefix("/cdn/"))
        elif match := re.fullmatch(r"/v2/(.+)/(manifests|blobs)/(.+)", path):
            repository, kind, rest = match[1], match[2], match[3]
            repository = repository.removesuffix("/blobs") if kind == "blobs" else repository
            if not self._is_allowed(repository):
                return
            if kind == "manifests":
                self._manifest(repository, rest)
            elif "/blobs/uploads" in path:
                repository, _, upload = path.removeprefix("/v2/").partition("/blobs/uploads/")
                self._upload(repository, upload)
            elif local.moved_to:
                self._answer(307, b"", {"Location": f"{local.moved_to}/cdn/{rest}?signed=1"})
            elif rest not in local.repositories.get(repository, ()):
                self._answer(404, _error("BLOB_UNKNOWN"))
            else:
                self._blob(rest)
        else:
            self._answer(404, _error("UNSUPPORTED"))

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = _handle  # noqa: N815

    def _is_allowed(self, repository: str) -> bool:
        """Whether the request may go on; else it has been answered."""
        local, sent = self.local, self.headers.get("Authorization", "")
        writes = self.command in ("POST", "PATCH", "PUT")
        if local.basic is not None and sent != _basic(local.basic):
            self._drain()
            self._answer(401, _error("UNAUTHORIZED"), {"WWW-Authenticate": 'Basic realm="here"'})
            return False
        actions = "pull,push" if writes else "pull"
        granted = local.tokens.get(sent.removeprefix("Bearer "), "")
        if local.bearer and (repository not in granted or (writes and "push" not in granted)):
            self._drain()
            scope = f"repository:{repository}:{actions}"
            realm = f"http://{local.host}/token"
            challenge = f'Bearer realm="{realm}",service="tests, mostly",scope="{scope}"'
            self._answer(401, _error("UNAUTHORIZED"), {"WWW-Authenticate": challenge})
            return False
        return True

    def _token(self) -> None:
        local = self.local
        sent = self.headers.get("Authorization", "")
        if local.token_for is not None and sent != _basic(local.token_for):
            self._answer(401, b"{}")
            return
        assert self.asked["service"] == "tests, mostly"
        token = secrets.token_urlsafe()
        local.tokens[token] = unquote(urlsplit(self.path).query)
        self._answer(200, json.dumps({"token": token}).encode())

    def _manifest(self, repository: str, reference: str) -> None:
        local = self.local
        if self.command == "PUT":
            content = self._body()
            listed = json.loads(content)
            blobs = {each["digest"] for each in [listed["config"], *listed["layers"]]}
            if blobs - local.repositories.get(repository, set()):
                self._answer(400, _error("MANIFEST_BLOB_UNKNOWN"))
                return
            local.put_manifest(repository, reference, content)
            self._answer(201, b"")
            return
        found = local.manifests.get((repository, reference))
        if found is None:
            self._answer(404, _error("MANIFEST_UNKNOWN"))
            return
        self._answer(200, found, {"Content-Type": MANIFEST})

    def _blob(self, digest: str) -> None:
        local = self.local
        if self.command == "GET" and local.statuses:
            extra = {"Retry-After": local.retry_after} if local.retry_after else {}
            self._answer(local.statuses.pop(0), b"", extra)
            return
        content = local.blobs[digest]
        if local.corrupt:
            content = bytes([content[0] ^ 0xFF]) + content[1:]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match is None or local.ignore_ranges:
            self._answer(200, content + local.surplus)
            return
        start, end = int(match[1]), int(match[2]) + 1
        if start >= len(content):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        named = f"bytes {start}-{min(end, len(content)) - 1}/{len(content)}"
        self._answer(206, content[start:end] + local.surplus, {"Content-Range": named})

    def _upload(self, repository: str, upload: str) -> None:
        local = self.local
        if self.command == "POST":
            mounted = self.asked.get("mount", "")
            if mounted in local.repositories.get(self.asked.get("from", ""), ()):
                local.repositories.setdefault(repository, set()).add(mounted)
                self._answer(201, b"")
                return
            upload = secrets.token_hex(4)
            local.uploads[upload] = bytearray()
        if upload not in local.uploads:
            self._drain()
            self._answer(404, _error("BLOB_UPLOAD_UNKNOWN"))
            return
        content = local.uploads[upload]
        place = {"Location": f"/v2/{repository}/blobs/uploads/{upload}?state={len(content)}"}
        if self.command in ("PATCH", "PUT"):
            if local.statuses:
                self._drain()
                self._answer(local.statuses.pop(0), b"")
                return
            begins = self.headers.get("Content-Range", "0-").partition("-")[0]
            if self.command == "PATCH" and int(begins) != len(content):
                self._drain()
                self._answer(416, _error("RANGE_INVALID"), place)
                return
            if not self._receive(content):
                return
            place["Location"] = re.sub(r"\d+$", str(len(content)), place["Location"])
        if self.command == "PUT":
            digest = self.asked["digest"]
            if digest_of(bytes(content)) != digest:
                self._answer(400, _error("DIGEST_INVALID"))
                return
            local.blobs[digest] = bytes(content)
            local.repositories.setdefault(repository, set()).add(digest)
            self._answer(201, b"")
            return
        named = {"Range": f"0-{max(0, len(content) - 1)}"}
        self._answer(204 if self.command == "GET" else 202, b"", {**place, **named})

    def _receive(self, content: bytearray) -> bool:
        """Append what comes; False where that was broken off."""
        local, left = self.local, int(self.headers.get("Content-Length", "0"))
        while left:
            piece = self.rfile.read1(min(left, 1 << 16))
            if not piece:
                return False
            content += piece
            left -= len(piece)
            if local.hang_after is not None and len(content) >= local.hang_after:
                local.wait_for_release()
                self.close_connection = True
                return False
            if local.drop_after is not None and len(content) >= local.drop_after:
                local.drop_after = None
                self.close_connection = True
                self.connection.close()
                return False
        return True

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _drain(self) -> None:
        self._body()

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        local = self.local
        is_blob = status in (200, 206) and ("/blobs/" in self.path or "/cdn/" in self.path)
        self.send_response(status)
        if is_blob and local.unmeasured:
            self.send_header("Connection", "close")
            self.close_connection = True
        elif status != 204:
            self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if is_blob and local.drop_after is not None and local.drop_after < len(body):
            self.wfile.write(body[: local.drop_after])
            self.close_connection = True
        elif is_blob and local.hang_after is not None and local.hang_after < len(body):
            self.wfile.write(body[: local.hang_after])
            local.wait_for_release()
            self.close_connection = True
        else:
            self.wfile.write(body)


def _basic(pair: tuple[str, str]) -> str:
    return f"Basic {base64.b64encode(':'.join(pair).encode()).decode()}"


def _error(code: str) -> bytes:
    message = code.lower().replace("_", " ")
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()
