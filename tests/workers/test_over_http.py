"""A worker is killed while it answers: every client is told why, and the next is answered."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from caudal.fleet.catalogue import GivenModels
from caudal.fleet.fleet import Fleet
from caudal.fleet.offer import ModelOffer
from caudal.fleet.options import FleetOptions
from caudal.loading.options import LoadOptions
from caudal.workers.launcher import ModelSource
from caudal.workers.worker_launcher import WorkerLauncher
from support.processes import wait_until_gone
from support.reference_model import TinyModel
from support.running_server import running_models
from support.vocabularies import bpe_metadata

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    tiny = TinyModel(
        architecture="llama",
        vocab_size=259,
        layers=1,
        metadata=bpe_metadata(),
        context_length=100_000,  # for answers that take longer than whoever is to be quick
    )
    path = str(tiny.write(tmp_path_factory.mktemp("model") / "tiny.gguf"))
    offers = [
        ModelOffer(source=ModelSource(name=path, names=(name,)), names=(name,), pinned=True)
        for name in ("a", "b")
    ]
    load = LoadOptions(threads=1, kv_memory=2**26)
    options = FleetOptions(memory=2**32, load=load)
    return Fleet(GivenModels(offers), WorkerLauncher(), options)


async def start_both(fleet: Fleet) -> None:
    await fleet.start(["a", "b"])


def test_clients_of_a_killed_worker_are_told_and_the_next_is_answered(fleet: Fleet):
    def body(**more: Any) -> dict[str, Any]:
        chosen = {"model": "a", "seed": 1, "ignore_eos": True, "max_tokens": 90_000}
        return chosen | more

    with running_models(fleet, lambda: start_both(fleet)) as server:

        def ask(name: str) -> dict[str, Any]:
            asked = body(model=name, prompt="x", max_tokens=16)
            answer = server.http.post("/v1/completions", json=asked)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]

        expected = ask("a")
        processes = {each.name: each.stay.running.process_id for each in fleet.members if each.stay}
        reached: list[str] = []

        def stream(path: str, asked: dict[str, Any]) -> str:
            text = ""
            with server.http.stream("POST", path, json=asked | {"stream": True}) as response:
                assert response.status_code == 200
                for part in response.iter_text():
                    if not text:
                        reached.append(path)
                    text += part
            return text

        with ThreadPoolExecutor() as threads:
            begun = [
                threads.submit(stream, "/v1/completions", body(prompt="x")),
                threads.submit(stream, "/v1/messages", body(messages=HI)),
                threads.submit(server.http.post, "/v1/completions", json=body(prompt="y")),
            ]
            while len(reached) < 2 or server.http.get("/ps").json()["models"][0]["running"] < 3:
                assert not any(future.done() for future in begun)
            os.kill(processes["a"], signal.SIGKILL)
            openai, anthropic, whole = (future.result() for future in begun)
        words = "The process of the model 'a' was killed, probably because memory ran out."
        error = json.loads(openai.split("data: ")[-2])["error"]
        assert error["message"].startswith(words)
        assert error["type"] == "server_error"
        assert anthropic.rstrip().rpartition("event: ")[2].startswith("error\n")
        assert json.loads(anthropic.split("data: ")[-1])["error"]["message"].startswith(words)
        assert (whole.status_code, whole.headers["retry-after"]) == (503, "1")
        assert whole.json()["error"]["message"].startswith(words)
        assert ask("b") == expected, "which noticed nothing"
        assert ask("a") == expected, "started again"
        assert processes["b"] in {each.stay.running.process_id for each in fleet.members}  # type: ignore[union-attr]
        ended = [each.stay.running.process_id for each in fleet.members if each.stay]
    wait_until_gone([process for process in ended if process is not None])
