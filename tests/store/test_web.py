"""GGUF files by their URLs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from caudal.errors import ModelNotFoundError, StoreError
from caudal.store import PullProgress, PullStage, Store
from support.wheels import model_bytes

WEIGHTS = model_bytes(300_000)


class Web:
    """A server of files.

    Attributes:
        files: Content by path.
        etag: What all of it is called; empty: nothing.
        drop_after: Closes the connection after so many bytes of one answer.
        ranges: What was asked for.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etag = '"one"'
        self.drop_after: int | None = None
        self.ranges: list[str] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                web.answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, request: Any) -> None:
        content = self.files.get(request.path)
        wanted = request.headers.get("Range", "")
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        self.ranges.append(wanted)
        if content is None:
            request.send_response(404)
            content, total = b"", 0
        else:
            total = len(content)
            same = request.headers.get("If-Range", self.etag) == self.etag
            request.send_response(206 if match and same else 200)
            if match and same:
                start, end = int(match[1]), min(int(match[2]) + 1, total)
                content = content[start:end]
                request.send_header("Content-Range", f"bytes {start}-{end - 1}/{total}")
            if self.etag:
                request.send_header("ETag", self.etag)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if self.drop_after is not None and len(content) > self.drop_after:
            content, self.drop_after = content[: self.drop_after], None
            request.close_connection = True
        request.wfile.write(content)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, patience: None) -> Iterator[Web]:
    server = Web()
    yield server
    server.close()


class EndedError(Exception):
    pass


def pull_a_part(web: Web, store: Store, url: str) -> None:
    web.drop_after = 200_000

    def end(event: PullProgress) -> None:
        if event.stage is PullStage.RETRYING:
            raise EndedError

    with pytest.raises(EndedError):
        store.pull(url, end)
    web.ranges.clear()


def test_a_file(web: Web, store: Store) -> None:
    web.files["/a/My%20Model.gguf"] = WEIGHTS
    url = f"{web.url}/a/My%20Model.gguf"
    pull_a_part(web, store, url)
    pulled = store.pull(url)
    assert (pulled.name, pulled.path.read_bytes()) == (url, WEIGHTS)
    assert web.ranges == ["bytes=0-3", "bytes=200000-299999"]
    assert [model.name for model in store.list()] == [url]
    web.ranges.clear()
    assert store.pull(url) == pulled
    assert web.ranges == ["bytes=0-3"]
    web.etag, web.files["/a/My%20Model.gguf"] = '"two"', model_bytes(1000)
    assert store.pull(url).path.read_bytes() == model_bytes(1000)
    assert not list((store.home / "downloads").iterdir())


@pytest.mark.parametrize("etag", ['"two"', "", 'W/"weak"'])
def test_another_file_is_not_gone_on_with(web: Web, store: Store, etag: str) -> None:
    url = f"{web.url}/m.gguf"
    web.files["/m.gguf"] = WEIGHTS
    pull_a_part(web, store, url)
    web.etag, web.files["/m.gguf"] = etag, model_bytes(300_000, seed=5)
    assert store.pull(url).path.read_bytes() == model_bytes(300_000, seed=5)


def test_a_file_that_changes_meanwhile(web: Web, store: Store) -> None:
    url = f"{web.url}/m.gguf"
    web.files["/m.gguf"] = WEIGHTS
    web.drop_after = 200_000

    def change(event: PullProgress) -> None:
        if event.stage is PullStage.RETRYING:
            web.etag, web.files["/m.gguf"] = '"two"', model_bytes(300_000, seed=5)

    with pytest.raises(StoreError, match="has changed while it was fetched"):
        store.pull(url, change)
    assert store.pull(url).path.read_bytes() == model_bytes(300_000, seed=5)


def test_a_split_file(web: Web, store: Store) -> None:
    parts = {f"/m-0000{n}-of-00002.gguf": model_bytes(1000, seed=n) for n in (1, 2)}
    web.files.update(parts)
    pulled = store.pull(f"{web.url}/m-00002-of-00002.gguf")
    assert pulled.names == tuple(name[1:] for name in parts)
    assert [path.read_bytes() for path in pulled.paths] == list(parts.values())


def test_what_is_no_model(web: Web, store: Store) -> None:
    web.files["/page.gguf"] = b"<html>Log in</html>"
    with pytest.raises(StoreError, match="isn't a GGUF file"):
        store.pull(f"{web.url}/page.gguf")
    with pytest.raises(ModelNotFoundError, match="there is no http"):
        store.pull(f"{web.url}/none.gguf")
    assert store.list() == []
