"""Models made, listed, copied and deleted as Ollama's official client asks for it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from typer.testing import CliRunner

from caudal.cli.app import app
from caudal.fleet.catalogue import StoredModels
from caudal.fleet.fleet import Fleet
from caudal.fleet.options import FleetOptions
from caudal.loading.options import LoadOptions
from caudal.packaging.create import create_model
from caudal.packaging.recipe import Recipe
from caudal.server.served_store import ServedStore
from caudal.store import Store
from caudal.workers.in_process import InProcessLauncher
from caudal.workers.launcher import Launcher, ServingOptions
from caudal.workers.worker_launcher import WorkerLauncher
from support.adapter_writer import random_factors, write_gguf_adapter
from support.local_registry import MODEL, LocalRegistry
from support.model_directories import write_ollama_model
from support.processes import children, wait_until_gone
from support.reference_model import TinyModel
from support.running_server import AnyServer, running_models
from support.vocabularies import bpe_metadata

TEMPLATE = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"


class Managed:
    """A server of a store, and the official client of it."""

    def __init__(self, server: AnyServer, store: Store) -> None:
        self.url, self.http, self.store = server.url, server.http, store
        self.client = ollama.Client(server.url)

    def names(self) -> list[str]:
        return [str(each.model) for each in self.client.list().models]

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/api/{path}", json=body)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = TinyModel(architecture="llama", vocab_size=259, layers=1, metadata=bpe_metadata())
    return model.write(tmp_path_factory.mktemp("weights") / "tiny.gguf")


@contextlib.contextmanager
def managing(store: Store, launcher: Launcher, refusal: str | None = None) -> Iterator[Managed]:
    options = FleetOptions(
        memory=2**30, load=LoadOptions(kv_memory=2**20, threads=1, packed_size=0)
    )
    fleet = Fleet(StoredModels(store, ServingOptions()), launcher, options)
    with running_models(fleet, fleet.start, store=ServedStore(store, refusal)) as server:
        yield Managed(server, store)


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    with managing(Store(tmp_path_factory.mktemp("home")), InProcessLauncher()) as managed:
        yield managed


@pytest.fixture(scope="module")
def base(managed: Managed, gguf: Path) -> str:
    """A model that is there, made of a blob."""
    digest = managed.client.create_blob(gguf)
    managed.client.create("base", files={"tiny.gguf": digest})
    return "base"


def test_a_model_is_made_of_blobs_and_lives_and_dies(managed: Managed, gguf: Path):
    client = managed.client
    digest = f"sha256:{hashlib.sha256(gguf.read_bytes()).hexdigest()}"
    assert managed.http.head(f"/api/blobs/{digest}").status_code == 404
    data = gguf.read_bytes()
    assert managed.http.post(f"/api/blobs/{digest}", content=data).status_code == 201
    assert managed.http.post(f"/api/blobs/{digest}", content=data).status_code == 200
    assert managed.http.head(f"/api/blobs/{digest}").status_code == 200
    assert client.create_blob(gguf) == digest
    reports = client.create(
        "Team/Thing:v1",
        files={"tiny.gguf": digest},
        template=TEMPLATE,
        system="Be brief.",
        parameters={"temperature": 0, "num_predict": 4, "num_ctx": 128, "stop": ["no", "way"]},
        messages=[{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}],
        license="do what you like",
        stream=True,
    )
    said = [report.status for report in reports]
    assert said[-2:] == ["writing manifest", "success"]
    assert any(str(each).endswith(f"layer {digest}") for each in said)

    [listed] = client.list().models
    assert listed.model == "Team/Thing:v1"
    assert listed.details is not None
    assert (listed.details.family, listed.details.format) == ("llama", "gguf")
    assert listed.size is not None
    assert listed.size > gguf.stat().st_size
    shown = client.show("team/thing:V1")
    assert shown.template == TEMPLATE
    assert shown.parameters is not None
    assert shown.parameters.splitlines()[0].split() == ["num_ctx", "128"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.block_count"] == 1
    assert shown.license == "do what you like"

    assert client.ps().models == []
    answer = client.chat("team/thing:v1", [{"role": "user", "content": "Hi"}], keep_alive="10m")
    assert 0 < int(answer.eval_count or 0) <= 4
    prompt = "[system]Be brief.[user]1+1?[assistant]2[user]Hi"
    assert answer.prompt_eval_count == len(prompt)  # a token is a byte
    [running] = client.ps().models
    assert (running.model, running.digest) == ("Team/Thing:v1", listed.digest)
    assert running.context_length == 128
    assert running.expires_at is not None
    assert 500 < running.expires_at.timestamp() - time.time() < 601

    assert client.copy("team/thing:v1", "twin").status == "success"
    assert sorted(managed.names()) == ["Team/Thing:v1", "twin:latest"]
    assert client.delete("team/thing:v1").status == "success"
    assert managed.names() == ["twin:latest"]
    with pytest.raises(ollama.ResponseError, match="not found") as gone:
        client.chat("team/thing:v1", [{"role": "user", "content": "Hi"}])
    assert gone.value.status_code == 404
    client.delete("twin:latest")
    assert managed.store.blob(digest) is None


def test_a_model_is_made_of_another_and_made_anew(managed: Managed, base: str):
    client = managed.client
    assert client.create("short", from_=base, parameters={"num_predict": 2}).status == "success"
    first = client.generate("short", "x", raw=True, options={"temperature": 0})
    assert first.eval_count == 2
    client.create("short", from_=base, parameters={"num_predict": 3}, system="x")
    again = client.generate("short", "x", raw=True, options={"temperature": 0})
    assert again.eval_count == 3
    assert client.generate("short", "x", raw=True, options={"num_predict": 1}).eval_count == 1
    client.delete("short")


def test_an_adapter_answers_for_the_model_that_it_was_made_with(
    managed: Managed, base: str, tmp_path: Path
):
    factors = {
        "blk.0.attn_q.weight": random_factors("blk.0.attn_q.weight", (64, 64), deviation=1.0)
    }
    digest = managed.client.create_blob(write_gguf_adapter(tmp_path / "a.gguf", "llama", factors))
    managed.client.create("adapted", from_=base, adapters={"a.gguf": digest})
    options = {"num_predict": 12, "temperature": 0}
    said = {
        name: managed.client.generate(name, "Once upon", raw=True, options=options).response
        for name in (base, "adapted")
    }
    assert said["adapted"] != said[base]
    names = [card["id"] for card in managed.http.get("/v1/models").json()["data"]]
    assert sorted(names) == ["adapted", "base"]
    card = managed.http.get("/v1/models/adapted").json()
    assert card["facts"]["package"].startswith("an adapter of rank ")
    managed.client.delete("adapted")


def test_deleting_lets_what_runs_end(managed: Managed, base: str):
    managed.client.copy(base, "doomed")
    options = {"num_predict": 1500, "temperature": 0}
    stream = managed.client.generate("doomed", "x", raw=True, stream=True, options=options)
    parts = [next(stream)]
    managed.client.delete("doomed")
    assert "doomed:latest" not in managed.names()
    parts += stream
    assert parts[-1].done
    assert int(parts[-1].eval_count or 0) > 1


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("create", {"model": "x", "from": "/etc/passwd"}, 400, "invalid model name"),
        ("create", {"model": "x", "from": "./x.gguf"}, 400, "invalid model name"),
        ("create", {"model": "../x", "from": "base"}, 400, "invalid model name"),
        ("create", {"model": "x"}, 400, "neither 'from' or 'files' was specified"),
        ("create", {"model": "x", "files": {}}, 400, "no files provided to convert"),
        ("create", {"model": "x", "files": {"a": "sha256:1"}}, 400, "digest"),
        ("create", {"model": "x", "files": {"../a": "sha256:" + 64 * "0"}}, 400, "relative"),
        ("create", {"model": "x", "files": {"a": "sha256:" + 64 * "0"}}, 400, "not found"),
        ("create", {"model": "x", "from": "base", "parameters": {"top_k": "many"}}, 400, "top_k"),
        ("create", {"model": "x", "from": "base", "template": "{{ if }}"}, 400, "template error"),
        ("create", {"model": "x", "from": "base", "parameters": {"top_p": 10**400}}, 400, "top_p"),
        ("create", {"model": "x", "from": "base", "parameters": {"num_ctx": -1}}, 400, "num_ctx"),
        ("create", {"from": "base"}, 400, "model is required"),
        ("create", {"model": "x", "from": "base", "requires": "zzz"}, 400, "must be a version"),
        ("copy", {"source": "nobody", "destination": "x"}, 404, 'model "nobody" not found'),
        ("copy", {"source": "base", "destination": "/tmp/x"}, 400, "is invalid"),
        ("show", {"model": "nobody"}, 404, "model 'nobody' not found"),
        ("show", {"model": "/etc/passwd"}, 404, "not found"),
        ("show", {}, 400, "model is required"),
        ("pull", {"model": "/etc/passwd"}, 400, "invalid model name"),
        ("push", {"model": "nobody"}, 404, "model 'nobody' not found"),
        ("push", {"model": "hf:nobody/nothing"}, 404, "not found"),
    ],
)
def test_what_cannot_be_is_refused(
    managed: Managed, base: str, path: str, body: dict[str, Any], status: int, error: str
):
    answer = managed.post(path, **body)
    assert answer.status_code == status, answer.text
    assert error in answer.json()["error"]
    assert managed.names() == ["base:latest"]


def test_blobs_are_what_they_are_said_to_be(managed: Managed):
    wrong = f"sha256:{hashlib.sha256(b'other').hexdigest()}"
    answer = managed.http.post(f"/api/blobs/{wrong}", content=b"this")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("digest mismatch, expected")
    assert managed.http.head(f"/api/blobs/{wrong}").status_code == 404
    assert managed.http.post("/api/blobs/sha256:1", content=b"").status_code == 400
    page = {"origin": "http://evil.example", "content-type": "text/plain"}
    assert (
        managed.http.post(f"/api/blobs/{wrong}", content=b"other", headers=page).status_code >= 400
    )
    large = b"x" * (40 * 2**20)  # more than any other body may have
    digest = f"sha256:{hashlib.sha256(large).hexdigest()}"
    assert managed.http.post(f"/api/blobs/{digest}", content=large).status_code == 201
    half = f"sha256:{hashlib.sha256(b'half').hexdigest()}"
    with pytest.raises(httpx.HTTPError):
        managed.http.post(f"/api/blobs/{half}", content=_broken_off())
    incoming = managed.store.layout.incoming
    deadline = time.monotonic() + 10
    while list(incoming.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(incoming.iterdir()) == []
    assert managed.store.blob(half) is None


def _broken_off() -> Iterator[bytes]:
    yield b"ha"
    raise httpx.WriteError("the cable is out")


def test_a_damaged_manifest_keeps_nobody_from_other_models(managed: Managed, base: str):
    manifest = managed.store.home / "manifests/registry.ollama.ai/library/damaged/latest"
    manifest.parent.mkdir()
    manifest.write_text("{")
    try:
        assert managed.names() == ["base:latest"]
        assert managed.http.get("/v1/models").json()["data"][0]["id"] == base
        assert managed.client.show(base).modelfile is not None
        assert managed.post("show", model="damaged").status_code == 404
        listed = CliRunner().invoke(app, ["list"], env={"CAUDAL_HOME": str(managed.store.home)})
        assert listed.stdout.count(base) == 1
        assert "damaged/latest is damaged" in listed.stderr
    finally:
        manifest.unlink()
        manifest.parent.rmdir()


def test_clients_are_not_told_where_models_are(
    managed: Managed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    torn = f"sha256:{hashlib.sha256(b'GGUF').hexdigest()}"
    managed.http.post(f"/api/blobs/{torn}", content=b"GGUF")
    refused = managed.post("create", model="x", files={"my.gguf": torn}, stream=False)
    assert refused.status_code == 400
    assert "my.gguf" in refused.json()["error"]
    write_ollama_model(tmp_path, "registry.ollama.ai/library/torn/latest", {"model": b"GGUF"})
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    answers = [refused, managed.post("show", model="torn"), managed.post("generate", model="torn")]
    answers += [managed.http.request("DELETE", "/api/delete", json={"model": "torn"})]
    for blob in (tmp_path / "blobs").iterdir():
        blob.unlink()
    answers += [managed.post("show", model="torn"), managed.post("generate", model="torn")]
    answers += [managed.post("create", **{"model": "x", "from": "torn", "stream": False})]
    for answer in answers:
        assert answer.json()["error"]
        assert str(tmp_path) not in answer.text
        assert str(managed.store.home) not in answer.text


def test_a_store_may_not_be_for_clients_to_change(tmp_path: Path):
    with managing(Store(tmp_path), InProcessLauncher(), "not here") as managed:
        assert managed.http.get("/api/tags").json() == {"models": []}
        digest = f"sha256:{64 * '0'}"
        for method, path, body in (
            ("POST", "create", {"model": "x", "from": "y"}),
            ("POST", "pull", {"model": "x"}),
            ("POST", "push", {"model": "x"}),
            ("POST", "copy", {"source": "x", "destination": "y"}),
            ("DELETE", "delete", {"model": "x"}),
            ("POST", f"blobs/{digest}", {}),
        ):
            answer = managed.http.request(method, f"/api/{path}", json=body)
            assert (answer.status_code, answer.json()) == (403, {"error": "not here"})


def test_a_worker_finds_by_itself_what_belongs_to_its_model(tmp_path: Path, gguf: Path):
    store = Store(tmp_path)
    recipe = Recipe(files={"a": gguf}, template=TEMPLATE, system="S", parameters={"num_predict": 2})
    create_model(store, "there", recipe)
    with managing(store, WorkerLauncher()) as managed:
        said = managed.client.chat("there:latest", [{"role": "user", "content": "Hi"}])
        assert (said.prompt_eval_count, said.eval_count) == (len("[system]S[user]Hi"), 2)


@pytest.fixture(scope="module")
def registry() -> Iterator[LocalRegistry]:
    local = LocalRegistry()
    yield local
    local.close()


def test_models_are_pushed_and_pulled(managed: Managed, base: str, registry: LocalRegistry):
    client, name = managed.client, f"{registry.host}/me/tiny"
    client.copy(base, name)
    pushed = [each.status for each in client.push(name, stream=True)]
    assert pushed[-2:] == ["pushing manifest", "success"]
    client.delete(name)
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.show(name)
    reports = list(client.pull(name, stream=True))
    assert reports[0].status == "pulling manifest"
    assert [each.status for each in reports[-2:]] == ["writing manifest", "success"]
    layers = {each.digest: each.total for each in reports if each.digest}
    assert max(layers.values(), default=0) == registry_size(registry)
    assert client.generate(name, "x", raw=True, options={"num_predict": 1}).eval_count == 1
    client.delete(name)
    assert client.pull(name).status == "success"
    client.delete(name)
    with pytest.raises(ollama.ResponseError) as unknown:
        client.pull(f"{registry.host}/me/nobody")
    assert unknown.value.status_code == 404
    assert "nobody" in unknown.value.error


def registry_size(registry: LocalRegistry) -> int:
    return max(map(len, registry.blobs.values()))


def test_who_goes_away_gives_up_what_was_being_pulled(managed: Managed, registry: LocalRegistry):
    registry.add("me/slow", "latest", (MODEL, b"x" * 300_000))
    registry.hang_after = 100_000
    name = f"{registry.host}/me/slow"
    before = set(children(os.getpid()))
    with managed.http.stream("POST", "/api/pull", json={"model": name}) as answer:
        next(answer.iter_lines())
        assert registry.hanging.wait(30)
        started = set(children(os.getpid())) - before
    wait_until_gone(list(started))
    registry.let_go()
    assert managed.post("show", model=name).status_code == 404
    assert managed.post("pull", model=name, stream=False).json() == {"status": "success"}
    managed.client.delete(name)


def test_our_commands_ask_such_a_server(managed: Managed, base: str):
    listed = CliRunner().invoke(app, ["list", "--url", managed.url])
    assert listed.stdout.splitlines()[1].split()[0] == "base:latest"
    for arguments in (["base"], [base, "--temperature", "0"]):
        said = CliRunner().invoke(
            app, ["run", *arguments, "Hi there", "--url", managed.url], env={"OLLAMA_HOST": "x:1"}
        )
        assert said.exit_code == 0, said.output
        assert said.stdout
    unknown = CliRunner().invoke(app, ["run", "nobody", "Hi"], env={"OLLAMA_HOST": managed.url})
    assert unknown.exit_code == 1
    assert "model 'nobody' not found" in unknown.stderr


def test_ollamas_models_are_served_and_left_alone(
    managed: Managed, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    theirs = Store(tmp_path / "models")
    create_model(theirs, "theirs", Recipe(files={"tiny.gguf": gguf}, system="Be brief."))
    before = {path: path.stat() for path in (tmp_path / "models/blobs").iterdir()}
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    assert "theirs:latest" in managed.names()
    said = managed.client.chat(
        "theirs", [{"role": "user", "content": "Hi"}], options={"num_predict": 1}
    )
    assert said.eval_count == 1
    with pytest.raises(ollama.ResponseError, match="which Caudal leaves alone") as refused:
        managed.client.delete("theirs")
    assert refused.value.status_code == 403
    managed.client.create("ours", from_="theirs", parameters={"num_predict": 2})
    assert managed.client.show("ours").modelfile is not None
    managed.client.delete("ours")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "models/blobs").iterdir()} == {
        path: status.st_mtime_ns for path, status in before.items()
    }


def test_what_is_quantised_is_not_quantised_again(managed: Managed, base: str):
    managed.client.create("small", from_=base, quantize="q8_0")
    answer = managed.post(
        "create", model="smaller", stream=False, **{"from": "small"}, quantize="q4_0"
    )
    assert answer.status_code == 400, answer.text
    assert "Q8_0" in answer.json()["error"]
    assert sorted(managed.names()) == ["base:latest", "small:latest"]
    managed.client.delete("small")
