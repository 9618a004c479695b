"""What is written down of requests: in which form, and that it never quotes them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import io
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caudal.logs import formats, lines
from caudal.logs.request import work_for
from caudal.logs.withheld import Discretion
from caudal.server import audit_log
from caudal.server.audit_log import AuditLog, AuditLogError
from caudal.server.records import RequestRecord
from support.fake_model import RoleTemplate, ScriptedExecutor, changed, serve_fake
from support.far_model import FarModel
from support.made_up_models import says, serving
from support.raw_client import connect, post
from support.running_server import RunningServer, Serve, running_server

SECRET = "xyzzy-plugh"
"""In all that must not be written."""


@contextlib.contextmanager
def logged(form: logging.Formatter) -> Iterator[io.StringIO]:
    """All that any logger says, whatever its level."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(form)
    handler.addFilter(lambda line: not line.name.startswith("http"))  # the client's
    root, ours = logging.getLogger(), logging.getLogger("caudal")
    before = root.level, ours.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    ours.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        root.setLevel(before[0])
        ours.setLevel(before[1])
        root.removeHandler(handler)


def by_server(text: io.StringIO) -> list[dict[str, Any]]:
    """The lines of requests, as objects."""
    found = [json.loads(line) for line in text.getvalue().splitlines()]
    return [line for line in found if line["logger"] == "caudal.server" and "outcome" in line]


def test_a_line_of_json_has_all_that_is_known_of_a_request(serve: Serve) -> None:
    with logged(formats.JSONFormat(Discretion())) as text:
        server = serve(ScriptedExecutor(script=b"Hello!"))
        body = {"messages": [{"role": "user", "content": SECRET}], "user": "ann\u2028e"}
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        given = {"X-Request-Id": "mine", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        server.http.post("/v1/chat/completions", json=body, headers=given)
        server.http.post("/v1/completions", json={"model": "none", "prompt": "x"})
        server.http.get("/health")
    answered, refused, probe = by_server(text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", answered["time"])
    named = ("level", "request_id", "trace_id", "method", "route", "model", "status", "outcome")
    assert [answered[name] for name in named] == [
        *("info", "mine", trace, "POST", "/v1/chat/completions", "fake", 200, "stop")
    ]
    assert (answered["output_tokens"], answered["user"]) == (7, "ann\u2028e")
    assert answered["client"] == "127.0.0.1"
    for part in ("template", "queue", "prefill", "decode", "first_token"):
        assert answered[f"{part}_seconds"] >= 0
    assert (refused["outcome"], refused["error"]) == ("rejected", "model_not_found")
    assert (refused["asked_model"], "model" in refused) == ("none", False)
    assert probe["level"] == "debug"
    assert SECRET not in text.getvalue()


class BrokenTemplate(RoleTemplate):
    """Stumbles over what it is given, and says so."""

    def encode(self, messages: Any, **options: Any) -> list[int]:
        raise KeyError(str(messages))


def ask_everything(server: RunningServer) -> None:
    """Ask all routes, rightly and wrongly, with the secret in whatever a client writes."""
    text = SECRET
    key = {"Authorization": f"Bearer {SECRET}", "Connection": "close"}
    messages = [{"role": "user", "content": text}]
    tool = {"type": "function", "function": {"name": text, "parameters": {"type": text}}}
    asked: list[tuple[str, Any]] = [
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/chat/completions", {"messages": messages, "stream": True}),
        ("/v1/chat/completions", {"messages": messages, "tools": [tool]}),
        ("/v1/chat/completions", {"messages": text}),
        ("/v1/chat/completions", {"messages": [{"role": text, "content": text}]}),
        ("/v1/chat/completions", {"messages": messages, "stop": [[text]], text: text}),
        ("/v1/chat/completions", {"messages": messages, "guided_regex": f"({text}"}),
        ("/v1/completions", {"prompt": text}),
        ("/v1/completions", {"prompt": {"a": text}}),
        ("/v1/completions", {"prompt": text * 2000}),
        ("/v1/responses", {"input": text, "instructions": text}),
        ("/v1/responses", {"input": text, "background": True}),
        ("/v1/responses", {"input": "x", "previous_response_id": text}),
        ("/v1/messages", {"messages": messages, "max_tokens": 5, "system": text}),
        ("/v1/messages/count_tokens", {"messages": messages}),
        ("/v1/embeddings", {"input": text}),
        ("/v1/embeddings", {"input": [text, 3]}),
        ("/v1/score", {"text_1": text, "text_2": text}),
        ("/api/chat", {"model": "fake", "messages": messages}),
        ("/api/generate", {"model": "fake", "prompt": text, "format": text}),
        ("/completion", {"prompt": text}),
        ("/tokenize", {"content": text}),
        ("/apply-template", {"messages": messages}),
        (f"/v1/{text}?q={text}", {}),
    ]
    for path, body in asked:
        server.http.post(path, json=body, headers=key)
    server.http.post(
        "/v1/completions",
        content=f'{{"prompt": "{text}',
        headers=key | {"Content-Type": "application/json"},
    )
    for request in (
        post("/v1/completions", b'{"prompt": "%s"}' % text.encode(), "X-Bad\0: xyzzy-plugh"),
        f"GET /{text} {text}\r\n\r\n".encode(),
    ):
        with connect(server.url) as sock:
            sock.sendall(request)
            sock.recv(1000)
    body = json.dumps({"messages": messages, "max_tokens": 300, "stream": True}).encode()
    with connect(server.url) as sock:
        sock.sendall(post("/v1/chat/completions", body))
        sock.recv(1000)


@pytest.mark.parametrize(
    ("trouble", "far"),
    [("none", True), ("template", False), ("template", True), ("executor", True)],
)
def test_nothing_that_is_written_quotes_a_request(trouble: str, far: bool) -> None:
    def fail(_: object) -> None:
        if trouble == "executor":
            raise RuntimeError("the device is gone")

    text_form = formats.TextFormat(Discretion())
    with logged(text_form) as text, logged(formats.JSONFormat(Discretion())) as objects:
        executor = ScriptedExecutor(script=f"Well, {SECRET}!".encode(), fail=fail)
        model = serve_fake(executor)
        if trouble == "template":
            template: Any = BrokenTemplate()
            chat = type(model.parts.chat)(template, model.parts.tokenizer)
            model = changed(model, chat=chat)
        with running_server(FarModel(model) if far else model) as server:
            ask_everything(server)
        with running_server(serve_fake(ScriptedExecutor()), api_key="k") as server:
            ask_everything(server)
    written = text.getvalue() + objects.getvalue()
    quoting = [line for line in written.splitlines() if SECRET in line]
    assert quoting == []
    assert written.count("/v1/chat/completions") >= 10, "they are told of"
    if trouble == "template":
        assert "KeyError (its message is not shown" in written
    for line in objects.getvalue().splitlines():
        json.loads(line)


def test_prompts_and_answers_are_written_where_that_is_wanted(serve: Serve) -> None:
    model = serve_fake(ScriptedExecutor(script=b"Hello!"))
    with (
        logged(formats.TextFormat(Discretion(show_all=True))) as text,
        running_server(model, log_prompts=True) as server,
    ):
        server.http.post("/v1/completions", json={"prompt": SECRET, "stream": True})
        body = {"messages": [{"role": "user", "content": SECRET}]}
        server.http.post("/v1/chat/completions", json=body)
        server.http.get("/health")
    assert text.getvalue().count(SECRET) == 2
    assert text.getvalue().count("Hello!") == 2


def test_libraries_do_not_quote_requests_either() -> None:
    async def fail() -> None:
        raise ValueError(SECRET)

    async def forget() -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.sleep(0.01)
        del task
        gc.collect()

    with logged(formats.TextFormat(Discretion())) as text:
        asyncio.run(forget())
        try:
            raise OSError(errno.ENOSPC, "No space left") from ValueError(SECRET)
        except OSError:
            logging.getLogger("uvicorn.error").exception("it has failed")
    assert "Task exception was never retrieved" in text.getvalue()
    assert "No space left" in text.getvalue()
    assert SECRET not in text.getvalue()


def test_lines_pass_from_one_process_to_another() -> None:
    with logged(lines.LineFormat(Discretion())) as text:
        work_for("req_1")
        try:
            int(SECRET)
        except ValueError:
            logging.getLogger("caudal.x").exception("two\nlines")
        work_for(None)
    [line, _] = text.getvalue().split("\n")
    record = lines.told(line, "tiny")
    assert record is not None
    said = json.loads(formats.JSONFormat(Discretion()).format(record))
    assert (said["message"], said["request_id"], said["model"]) == ("two\nlines", "req_1", "tiny")
    assert (said["level"], said["logger"]) == ("error", "caudal.x")
    assert "test_logs.py" in said["exception"]
    assert SECRET not in line
    for other in ("Fatal Python error", "\x1e{", '\x1e{"m": 1}', "\x1e[]"):
        assert lines.told(other, "tiny") is None


def test_what_outlives_a_request_is_not_told_of_it() -> None:
    """A model goes on when it has been answered for whose sake it was loaded."""
    with (
        logged(formats.JSONFormat(Discretion())) as text,
        serving(a=says("a"), b=says("b")) as (server, _),
    ):
        for name in "ab":
            body = {"model": name, "prompt": "x"}
            server.http.post("/v1/completions", json=body, headers={"X-Request-Id": name})
    said = [json.loads(line) for line in text.getvalue().splitlines()]
    of_models = [line for line in said if line["logger"] == "caudal.fleet"]
    assert any(line["message"].startswith("loaded b") for line in of_models)
    assert {line.get("request_id") for line in of_models} == {None}
    assert [line["request_id"] for line in said if "outcome" in line] == ["a", "b"]


# The audit log


def read(file: Path, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 20
    while ((found := file.read_bytes().splitlines()) and len(found) < count) or not found:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [json.loads(line) for line in found]


def test_the_audit_log_says_who_asked_what_and_goes_on_where_it_is_told_to(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(str(file))
    model = serve_fake(ScriptedExecutor(script=b"Hello!"))
    with running_server(model, sinks=[audit]) as server:
        server.http.post("/v1/completions", json={"prompt": SECRET})
        server.http.get("/health")
        server.http.post("/v1/completions", json={"prompt": [SECRET]})
        first, second = read(file, 2)
        assert (first["model"], first["outcome"], first["output_tokens"]) == ("fake", "stop", 7)
        assert second["request_id"] != first["request_id"]
        moved = file.rename(tmp_path / "audit.jsonl.1")
        audit.reopen()
        server.http.post("/v1/completions", json={"prompt": 1})
        [third] = read(file, 1)
        assert (third["status"], third["outcome"]) == (400, "rejected")
    assert len(read(moved, 2)) == 2
    assert file.stat().st_mode & 0o777 == 0o600
    audit.close()
    with pytest.raises(AuditLogError, match="can't be written to"):
        AuditLog(str(tmp_path))


def test_a_full_disk_keeps_lines_back_and_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "audit.jsonl"
    room = [30, 0, 0]  # bytes that may be written until there is room again
    full = threading.Event()
    write = os.write

    def write_some(descriptor: int, data: bytes) -> int:
        if room:
            size = room.pop(0)
            if not size:
                full.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            data = data[:size]
        return write(descriptor, data)

    monkeypatch.setattr(audit_log, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(audit_log, "MOST_WAITING", 2)
    monkeypatch.setattr(os, "write", write_some)
    audit = AuditLog(str(file))
    audit.ended(RequestRecord(id="1", route="/x"))
    assert full.wait(10)
    for identity in "234":
        audit.ended(RequestRecord(id=identity, route="/x"))
    assert [line["request_id"] for line in read(file, 2)] == ["1", "2"]
    audit.close()
    assert audit.lost == 2
    assert "can't be written: No space left on device" in caplog.text
    assert "is written again; 2 lines are lost" in caplog.text
