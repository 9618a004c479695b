"""llama.cpp's own `POST /completion`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.fake_model import END, ScriptedExecutor
from support.running_server import RunningServer, Serve


@pytest.fixture
def cat(serve: Serve) -> RunningServer:
    return serve(ScriptedExecutor(script=b"cat\nnap"))


def complete(server: RunningServer, prompt: Any = "Hi", **fields: Any) -> Any:
    response = server.http.post("/completion", json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def streamed(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    body = {"prompt": "Hi", "stream": True, **fields}
    text = server.http.post("/completion", json=body).text
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]


def test_a_whole_answer(cat: RunningServer):
    answer = complete(cat)
    assert answer["content"] == "cat\nnap"
    assert answer["prompt"] == "Hi"
    assert answer["model"] == "fake"
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "eos", "")
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (2, 8)
    assert answer["has_new_line"] is True
    assert answer["truncated"] is False
    assert answer["tokens"] == []
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == 2
    assert timings["predicted_n"] == 8
    assert timings["predicted_ms"] >= 0


def test_the_defaults_are_llama_cpps(cat: RunningServer):
    settings = complete(cat)["generation_settings"]
    assert settings == cat.http.get("/props").json()["default_generation_settings"]["params"]
    names = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "n_predict")
    assert [settings[name] for name in names] == [0.8, 40, 0.95, 0.05, 1.0, -1]
    given = {"temperature": 0, "top_k": 3, "n_predict": 2, "seed": 7, "repeat_penalty": 1.5}
    settings = complete(cat, **given)["generation_settings"]
    assert {name: settings[name] for name in given} == given


def test_what_ends_an_answer_is_said(cat: RunningServer):
    answer = complete(cat, n_predict=3)
    assert (answer["content"], answer["stop_type"]) == ("cat", "limit")
    assert answer["has_new_line"] is False
    answer = complete(cat, stop=["\n"])
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == (
        "cat",
        "word",
        "\n",
    )


def test_an_answer_that_the_context_ends_is_truncated(serve: Serve):
    server = serve(ScriptedExecutor(script=b"x" * 600))
    answer = complete(server)
    assert answer["truncated"] is True
    assert answer["tokens_evaluated"] + answer["tokens_predicted"] == 512
    assert complete(server, n_predict=9)["truncated"] is False


def test_streams_are_parts_and_an_end(cat: RunningServer):
    *parts, end = streamed(cat)
    assert "".join(part["content"] for part in parts) == "cat\nnap"
    assert [token for part in parts for token in part["tokens"]] == list(b"cat\nnap")
    assert not any(part["stop"] for part in parts)
    assert (end["stop"], end["content"], end["stop_type"]) == (True, "", "eos")
    assert end["timings"]["predicted_n"] == 8
    assert end["generation_settings"]["stream"] is True


def test_prompts_of_every_shape(cat: RunningServer):
    for prompt, text in (
        ([72, 105], "Hi"),
        ([72, "i"], "Hi"),
        ({"prompt_string": "Hi"}, "Hi"),
        ("Hi<|end|>", "Hi<|end|>"),
    ):
        assert complete(cat, prompt)["prompt"] == text
    several = complete(cat, ["a", [98], {"prompt_string": "c"}, [100, "e"]])
    assert [(each["index"], each["prompt"]) for each in several] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
        (3, "de"),
    ]
    assert [each["index"] for each in complete(cat, n_cmpl=2)] == [0, 1]
    assert isinstance(complete(cat, ["a"]), list)


def test_control_tokens_in_a_prompt_are_control_tokens(cat: RunningServer):
    assert complete(cat, "a<|end|>")["tokens_evaluated"] == 2
    assert complete(cat, ["a<|end|>", "b"])[0]["tokens_evaluated"] == 2


@pytest.mark.parametrize(
    "prompt",
    [None, "", 7, [], [[]], [1.5], {}, {"prompt_string": 1}, [True], ["a", 1.5], [100_000]],
)
def test_prompts_that_are_none(cat: RunningServer, prompt: Any):
    refused = cat.http.post("/completion", json={"prompt": prompt})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt"


def test_images_are_refused(cat: RunningServer):
    prompt = {"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}
    refused = cat.http.post("/completion", json={"prompt": prompt})
    assert refused.status_code == 400
    assert "multimodal_data" in refused.json()["error"]["message"]


def test_probabilities(cat: RunningServer):
    entries = complete(cat, n_probs=3, n_predict=2)["completion_probabilities"]
    assert [(entry["id"], entry["token"], entry["bytes"]) for entry in entries] == [
        (99, "c", [99]),
        (97, "a", [97]),
    ]
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    assert all(entry["logprob"] <= 0 for entry in entries)
    *parts, _ = streamed(cat, n_probs=1, n_predict=2)
    assert [len(part["completion_probabilities"]) for part in parts] == [1, 1]


def test_tokens_and_fields_on_request(cat: RunningServer):
    assert complete(cat, return_tokens=True)["tokens"] == [*b"cat\nnap", END]
    wanted = ["content", "generation_settings/n_predict", "nothing"]
    assert complete(cat, n_predict=3, response_fields=wanted) == {
        "content": "cat",
        "generation_settings/n_predict": 3,
    }


def test_biases_by_token_by_text_and_never(cat: RunningServer):
    def biases(value: Any) -> list[Any]:
        settings = complete(cat, logit_bias=value)["generation_settings"]
        found: list[Any] = settings["logit_bias"]
        return found

    assert biases([[99, 1.5]]) == [{"token": 99, "bias": 1.5}]
    assert biases([["ab", -1]]) == [{"token": 97, "bias": -1}, {"token": 98, "bias": -1}]
    assert biases([[99, False]]) == [{"token": 99, "bias": -100}]
    assert biases({"99": 2, "x": 1}) == [{"token": 99, "bias": 2}, {"token": 120, "bias": 1}]
    assert biases([["9", 1]]) == [{"token": ord("9"), "bias": 1}]
    long = [["x" * 257, 1]], [[1, 1]] * 1025
    for wrong in (*long, "x", [1], [[1]], [[None, 1]], [[100_000, 1]], [[1, "x"]], [[1, 101]]):
        refused = cat.http.post("/completion", json={"prompt": "Hi", "logit_bias": wrong})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "logit_bias"


def test_answers_have_a_form_where_asked_for(cat: RunningServer):
    assert complete(cat, grammar='root ::= "dog"')["content"] == "dog"
    assert complete(cat, json_schema={"const": 7})["content"] == "7"


def test_hints_are_said_and_what_samples_otherwise_is_refused(cat: RunningServer):
    hints = {"cache_prompt": True, "id_slot": 1, "samplers": ["top_k"]}
    answer = cat.http.post("/completion", json={"prompt": "Hi", **hints})
    assert set(answer.headers["x-caudal-ignored"].split(", ")) == hints.keys()
    complete(cat, mirostat=0, dry_multiplier=0.0, lora=[], seed=-1)
    for wrong in ({"mirostat": 2}, {"n_predict": -2}, {"n_probs": 21}, {"n_cmpl": 0}):
        refused = cat.http.post("/completion", json={"prompt": "Hi", **wrong})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == next(iter(wrong))


def test_nothing_generated_only_reads_the_prompt(cat: RunningServer):
    answer = complete(cat, n_predict=0)
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert answer["stop_type"] == "limit"
