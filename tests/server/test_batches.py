"""Files and batches over HTTP, with the official clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from caudal.batches.lines import LineLimits
from caudal.batches.options import BatchOptions
from caudal.engine.request import BACKGROUND
from caudal.server.auth import Access
from caudal.server.batch_state import BatchHome
from caudal.server.limits import ServerLimits
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.service import RunningChat
from caudal.service.work import ChatWork
from caudal.tenants.keys import GivenKeys, Key, digest_of
from caudal.tenants.ring import KeyRing
from support.fake_model import ScriptedExecutor, serve_fake
from support.running_server import RunningServer, running_server

ENDED = ("failed", "completed", "expired", "cancelled")
CHAT = "/v1/chat/completions"


def line(custom_id: Any, content: str = "Hi", **more: Any) -> dict[str, Any]:
    body = {"model": "fake", "messages": [{"role": "user", "content": content}], "max_tokens": 5}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body | more}


def jsonl(*lines: Any) -> bytes:
    return b"".join(
        each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines
    )


def send(client: openai.OpenAI, *lines: Any) -> str:
    return client.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch").id


def begin(client: openai.OpenAI, *lines: Any, **options: Any) -> Batch:
    arguments: dict[str, Any] = {"completion_window": "24h", "endpoint": CHAT} | options
    return client.batches.create(input_file_id=send(client, *lines), **arguments)


def wait(client: openai.OpenAI, batch: Batch, *statuses: str) -> Batch:
    deadline = time.monotonic() + 30
    while batch.status not in (statuses or ENDED):
        assert time.monotonic() < deadline, batch
        time.sleep(0.01)
        batch = client.batches.retrieve(batch.id)
    return batch


def output(client: openai.OpenAI, identity: str | None) -> list[dict[str, Any]]:
    assert identity is not None
    return [json.loads(each) for each in client.files.content(identity).text.splitlines()]


@contextlib.contextmanager
def batch_server(
    home: Path, executor: ScriptedExecutor | None = None, **options: Any
) -> Iterator[RunningServer]:
    model = serve_fake(executor or ScriptedExecutor(script=b"Hello!"))
    kept = BatchOptions(**{"limits": LineLimits(lines=50)} | options)
    with running_server(
        model, batch_home=BatchHome(home, kept), limits=ServerLimits(upload_bytes=2**22)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with batch_server(tmp_path_factory.mktemp("home")) as running:
        yield running


def test_a_batch_is_answered_line_by_line_in_order(server: RunningServer):
    client = server.openai()
    lines = [line(f"r{number}", "x" * number) for number in range(40)]
    lines[7] = line("wrong", temprature=1)
    lines[9]["body"]["model"] = "absent"
    batch = begin(client, *lines, metadata={"for": "me"})
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", CHAT, {"for": "me"})
    assert batch.expires_at == batch.created_at + 24 * 3600
    batch = wait(client, batch)
    assert batch.status == "completed"
    assert batch.model is None
    assert batch.errors is None
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 40, "completed": 38, "failed": 2}
    assert batch.usage is not None
    assert batch.usage.output_tokens == 38 * 5
    done = output(client, batch.output_file_id)
    assert [each["custom_id"] for each in done] == [
        f"r{number}" for number in range(40) if number not in (7, 9)
    ]
    first = done[0]
    assert first.keys() == {"id", "custom_id", "response", "error"}
    assert first["id"].startswith("batch_req_")
    assert first["error"] is None
    response = first["response"]
    assert response["status_code"] == 200
    assert response["request_id"].startswith("req_")
    assert response["body"]["choices"][0]["message"]["content"] == "Hello"
    assert sum(each["response"]["body"]["usage"]["prompt_tokens"] for each in done) == (
        batch.usage.input_tokens
    )
    misspelt, absent = output(client, batch.error_file_id)
    assert misspelt["custom_id"] == "wrong"
    assert misspelt["error"] is None
    assert misspelt["response"]["status_code"] == 400
    assert "temperature" in misspelt["response"]["body"]["error"]["message"]
    assert absent["response"]["status_code"] == 404
    made = client.files.retrieve(batch.output_file_id or "")
    assert (made.purpose, made.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert server.metric('caudal_batch_lines_total{outcome="failed"}') == 2
    assert server.metric("caudal_batches") == 0


@pytest.mark.parametrize(
    ("path", "body", "found"),
    [
        ("/v1/completions", {"prompt": "Hi"}, lambda body: body["choices"][0]["text"] == "Hello!"),
        ("/v1/responses", {"input": "Hi"}, lambda body: body["output_text"] == "Hello!"),
        ("/v1/embeddings", {"input": ["Hi", "Ho"]}, lambda body: len(body["data"]) == 2),
    ],
)
def test_other_endpoints(server: RunningServer, path: str, body: dict[str, Any], found: Any):
    async def ask() -> dict[str, Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            asked = {"custom_id": "a", "method": "POST", "url": path, "body": body}
            file = await client.files.create(file=jsonl(asked), purpose="batch")
            batch = await client.batches.create(
                input_file_id=file.id,
                completion_window="24h",
                endpoint=path,  # type: ignore[arg-type]
            )
            while batch.status not in ENDED:
                await asyncio.sleep(0.01)
                batch = await client.batches.retrieve(batch.id)
            assert batch.output_file_id is not None, batch
            answer = await client.files.content(batch.output_file_id)
            assert batch.usage is not None
            assert batch.usage.input_tokens > 0
            return json.loads(answer.text)["response"]["body"]  # type: ignore[no-any-return]

    answer = asyncio.run(ask())
    if path == "/v1/responses":
        answer["output_text"] = answer["output"][0]["content"][0]["text"]
    assert found(answer)


def test_an_input_with_faults_is_no_batch(server: RunningServer):
    client = server.openai()
    batch = begin(
        client,
        line("a"),
        b"\n",
        line("a"),
        b'{"custom_id": \n',
        line("b") | {"method": "GET"},
        line("c") | {"url": "/v1/embeddings"},
        {"custom_id": "d", "method": "POST", "url": CHAT},
        line("e", stream=True),
        line(7),
        b"[" * 100_000 + b"\n",
    )
    batch = wait(client, batch)
    assert batch.status == "failed"
    assert batch.errors is not None
    found = [(each.line, each.code, each.param) for each in batch.errors.data or ()]
    assert found == [
        (3, "duplicate_custom_id", "custom_id"),
        (4, "invalid_json_line", None),
        (5, "invalid_method", "method"),
        (6, "invalid_url", "url"),
        (7, "missing_required_parameter", "body"),
        (8, "invalid_request", "body.stream"),
        (9, "invalid_custom_id", "custom_id"),
        (10, "invalid_json_line", None),
    ]
    assert batch.output_file_id is batch.error_file_id is None
    for lines, code in (
        ([b"\n"], "empty_file"),
        ([line(str(n)) for n in range(51)], "too_many_tasks"),
    ):
        failed = wait(client, begin(client, *lines))
        assert failed.errors is not None
        assert [each.code for each in failed.errors.data or ()] == [code]


def test_files(server: RunningServer):
    client = server.openai()
    before = len(client.files.list().data)
    content = "\ud83e\udd99é".encode("utf-16", "surrogatepass").decode("utf-16").encode() * 99_999
    file = client.files.create(
        file=("llámas.jsonl", content),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.object, file.bytes, file.filename) == ("file", len(content), "llámas.jsonl")
    assert (file.status, file.purpose) == ("processed", "batch")
    assert file.expires_at == file.created_at + 3600
    assert client.files.content(file.id).read() == content
    later = send(client, line("a"))
    newest = client.files.list(limit=1)
    assert [each.id for each in newest.data] == [later]
    assert next(iter(newest.get_next_page().data)).id == file.id
    oldest = client.files.list(order="asc", purpose="batch", after=file.id)
    assert [each.id for each in oldest.data] == [later]
    assert client.files.delete(later).deleted
    for gone in (later, "file-../../batch", "file-" + "0" * 32):
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(gone)
    assert len(list(client.files.list(limit=1))) == before + 1


def test_what_is_refused_of_files_leaves_nothing(server: RunningServer):
    client = server.openai()
    kept = server.metric("caudal_files_bytes")
    with pytest.raises(openai.BadRequestError, match="no use for files for 'user_data'"):
        client.files.create(file=b"{}", purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="from 3600"):
        client.files.create(
            file=b"{}", purpose="batch", expires_after={"anchor": "created_at", "seconds": 1}
        )
    with pytest.raises(openai.APIStatusError) as caught:
        client.files.create(file=b"x" * 2**22, purpose="batch")
    assert caught.value.status_code == 413
    post = server.http.post
    assert post("/v1/files", json={}).status_code == 400
    assert post("/v1/files", data={"purpose": "batch"}, files={"x": b""}).status_code == 400
    cut = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc'
    kind = {"content-type": "multipart/form-data; boundary=x"}
    assert post("/v1/files", content=cut, headers=kind).status_code == 400
    page = {"origin": "http://evil.example"}
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": b"{}"}}
    assert post("/v1/files", headers=page, **form).status_code == 403
    assert server.metric("caudal_files_bytes") == kept


def test_what_is_refused_of_batches(server: RunningServer):
    client = server.openai()
    ended = wait(client, begin(client, line("a")))
    for change in (
        {"completion_window": "soon"},
        {"completion_window": "-1"},
        {"endpoint": "/v1/images"},
        {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
    ):
        with pytest.raises(openai.BadRequestError):
            begin(client, line("a"), **change)
    with pytest.raises(openai.NotFoundError):
        client.batches.create(
            input_file_id="file-" + "0" * 32, completion_window="24h", endpoint=CHAT
        )
    with pytest.raises(openai.BadRequestError, match="batch_output"):
        client.batches.create(
            input_file_id=ended.output_file_id or "", completion_window="24h", endpoint=CHAT
        )
    with pytest.raises(openai.ConflictError, match="completed"):
        client.batches.cancel(ended.id)
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_" + "0" * 32)
    assert client.batches.list(limit=1).data[0].id == ended.id
    pages = client.batches.list(limit=1).get_next_page()
    assert pages.data[0].created_at <= ended.created_at


def test_files_that_have_no_room_are_refused(tmp_path: Path):
    with batch_server(tmp_path, max_bytes=1000) as server:
        client = server.openai()
        send(client, b"x" * 600)
        with pytest.raises(openai.InternalServerError, match="1000 bytes in all") as caught:
            send(client, b"x" * 600)
        assert caught.value.status_code == 507
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert server.metric("caudal_files_bytes") == 600
        assert len(list((tmp_path / "files").iterdir())) == 2


def test_a_cancelled_batch_keeps_what_was_answered(tmp_path: Path):
    executor = ScriptedExecutor(script=b"x" * 400, seconds=0.002)
    with batch_server(tmp_path, executor, concurrency=2) as server:
        client = server.openai()
        lines = [line(f"r{n}", max_tokens=400 if n > 3 else 1) for n in range(20)]
        batch = begin(client, *lines)
        while (counts := client.batches.retrieve(batch.id).request_counts).completed < 4:  # type: ignore[union-attr]
            assert counts
        server.wait_for_metric("caudal_requests_running", 2)
        batch = client.batches.cancel(batch.id)
        assert batch.status in ("cancelling", "cancelled")
        batch = wait(client, batch, "cancelled")
        server.wait_for_metric("caudal_requests_running", 0)
        done = {each["custom_id"] for each in output(client, batch.output_file_id)}
        missing = output(client, batch.error_file_id)
        assert {f"r{n}" for n in range(4)} <= done
        assert {each["error"]["code"] for each in missing} == {"batch_cancelled"}
        assert sorted(done | {each["custom_id"] for each in missing}) == sorted(
            f"r{n}" for n in range(20)
        )
        assert len(missing) + len(done) == 20


def test_a_batch_expires_and_another_goes_on_after_a_restart(tmp_path: Path):
    slow = ScriptedExecutor(script=b"x" * 300, seconds=0.003)
    with batch_server(tmp_path, slow, concurrency=4) as server:
        client = server.openai()
        short = begin(
            client, *(line(f"r{n}", max_tokens=300) for n in range(9)), completion_window="1s"
        )
        short = wait(client, short, "expired")
        missing = output(client, short.error_file_id)
        assert {each["error"]["code"] for each in missing} == {"batch_expired"}
        long = begin(client, *(line(f"r{n}", max_tokens=20 + n) for n in range(40)))
        while client.batches.retrieve(long.id).request_counts.completed < 5:  # type: ignore[union-attr]
            time.sleep(0.01)
    assert not list(tmp_path.glob("files/*.part"))
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.name == "lock", path
    with batch_server(tmp_path) as server:
        client = server.openai()
        assert client.batches.retrieve(short.id).status == "expired"
        done = output(client, wait(client, long).output_file_id)
        assert [each["custom_id"] for each in done] == [f"r{n}" for n in range(40)]
        texts = [each["response"]["body"]["choices"][0]["message"]["content"] for each in done]
        assert 5 <= sum(set(text) == {"x"} for text in texts) < 40  # the others were answered anew
        assert "Hello!" in texts


def test_files_and_batches_are_their_keys_and_lines_run_for_it(tmp_path: Path):
    rules = {"requests_per_minute": 2, "timeout": 0.001, "weight": 3.0, "models": ("fake",)}
    keys = GivenKeys(
        [
            Key(name=name, digest=digest_of(name.encode()), rules=of)
            for name, of in (("ann", rules), ("bob", {}))
        ]
    )
    model = serve_fake(ScriptedExecutor(script=b"Hello!"))
    contexts: list[RequestContext] = []
    chat = model.chat

    async def noted(work: ChatWork, context: RequestContext = NO_CONTEXT) -> RunningChat:
        contexts.append(context)
        return await chat(work, context)

    model.chat = noted  # type: ignore[method-assign]
    with running_server(
        model, batch_home=BatchHome(tmp_path), access=Access(keys=KeyRing([keys]))
    ) as server:
        ann, bob = server.openai("ann"), server.openai("bob")
        lines = [line(f"r{n}", priority=n - 5) for n in range(9)]
        batch = wait(ann, begin(ann, *lines, line("no", model="secret")))
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 10, "completed": 9, "failed": 1}
        assert {context.tenant for context in contexts} == {"ann"}
        assert {context.weight for context in contexts} == {3.0}
        assert len({context.cache_salt for context in contexts} - {None}) == 1
        priorities = sorted(context.priority - BACKGROUND for context in contexts)
        assert priorities == [0, 0, 0, 0, 0, 0, 1, 2, 3]
        for ask in (
            lambda: bob.batches.retrieve(batch.id),
            lambda: bob.batches.cancel(batch.id),
            lambda: bob.files.content(batch.output_file_id or ""),
            lambda: bob.files.delete(batch.input_file_id),
            lambda: bob.batches.create(
                input_file_id=batch.input_file_id, completion_window="24h", endpoint=CHAT
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        assert bob.batches.list().data == bob.files.list().data == []
        with pytest.raises(openai.NotFoundError):
            ann.batches.retrieve(batch.id.replace("batch_", "msgbatch_"))


def test_one_server_at_a_time_has_a_home(tmp_path: Path):
    with contextlib.ExitStack() as stack:
        first = contextlib.ExitStack()
        stack.push(first)
        client = first.enter_context(batch_server(tmp_path)).openai()
        send(client, line("a"))
        second = stack.enter_context(batch_server(tmp_path)).openai()
        with pytest.raises(openai.InternalServerError, match="Another server"):
            second.files.list()
        first.close()
        assert len(second.files.list().data) == 1  # which needn't be started again for that


def test_without_a_home_there_are_no_files():
    with (
        running_server(serve_fake(ScriptedExecutor())) as server,
        pytest.raises(openai.PermissionDeniedError),
    ):
        server.openai().files.list()
