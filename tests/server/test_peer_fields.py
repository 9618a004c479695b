"""Fields that vLLM and llama.cpp's server have beside OpenAI's: they work, hint, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.fake_model import END, ScriptedExecutor
from support.running_server import RunningServer, Serve

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"prompt": "Hi"}
PROMPT = list(b"user:Hi\nassistant:")


@pytest.fixture
def cat(serve: Serve) -> RunningServer:
    return serve(ScriptedExecutor(script=b"cat"))


def text(server: RunningServer, **fields: Any) -> dict[str, Any]:
    answer = server.http.post("/v1/completions", json=TEXT | fields)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def chat(server: RunningServer, **fields: Any) -> dict[str, Any]:
    answer = server.http.post("/v1/chat/completions", json=CHAT | fields)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def chunks(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    client = server.openai()
    create: Any = client.completions if path == "completions" else client.chat.completions
    stream = create.create(
        model="fake", stream=True, extra_body=body, **(TEXT, CHAT)["chat" in path]
    )
    return [chunk.model_dump(exclude_unset=True) for chunk in stream]


def test_token_ids_of_the_prompt_and_of_the_answer(cat: RunningServer):
    choice = text(cat, return_token_ids=True)
    assert choice["prompt_token_ids"] == list(b"Hi")
    assert choice["token_ids"] == [*b"cat", END]
    whole = chat(cat, return_token_ids=True, n=2)
    assert whole["prompt_token_ids"] == PROMPT
    assert [each["token_ids"] for each in whole["choices"]] == [[*b"cat", END]] * 2


def test_who_asks_for_no_token_ids_reads_null(cat: RunningServer):
    for fields in ({}, {"return_token_ids": False}):
        choice = text(cat, **fields)
        assert (
            choice["token_ids"] is choice["prompt_token_ids"] is choice["prompt_logprobs"] is None
        )
        whole = chat(cat, **fields)
        assert whole["choices"][0]["token_ids"] is None
        assert whole["prompt_token_ids"] is whole["prompt_logprobs"] is None


def test_a_streams_first_chunk_has_the_prompts_ids_and_each_its_own(cat: RunningServer):
    first, *others = chunks(cat, "completions", {"return_token_ids": True})
    assert first["choices"][0]["prompt_token_ids"] == list(b"Hi")
    assert not any("prompt_token_ids" in chunk["choices"][0] for chunk in others)
    ids = [token for chunk in (first, *others) for token in chunk["choices"][0]["token_ids"]]
    assert ids == [*b"cat", END]

    first, *others = chunks(cat, "chat", {"return_token_ids": True})
    assert first["prompt_token_ids"] == PROMPT
    assert first["object"] == others[-1]["object"] == "chat.completion.chunk"
    assert not any("prompt_token_ids" in chunk for chunk in others)
    ids = [token for chunk in (first, *others) for token in chunk["choices"][0]["token_ids"]]
    assert ids == [*b"cat", END]


def test_tokens_may_be_called_by_their_ids(cat: RunningServer):
    choice = text(cat, logprobs=2, echo=True, return_tokens_as_token_ids=True)
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in b"Hicat"]
    assert set(choice["logprobs"]["top_logprobs"][2]) > {"token_id:99"}
    [choice] = chat(cat, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{token}" for token in b"cat"]
    assert entries[0]["top_logprobs"][0]["token"].startswith("token_id:")
    assert bytes(entries[0]["bytes"]) == b"c"


@pytest.mark.parametrize("top", [0, 2])
def test_log_probabilities_of_the_prompt(cat: RunningServer, top: int):
    for scores, tokens in (
        (text(cat, prompt_logprobs=top)["prompt_logprobs"], list(b"Hi")),
        (chat(cat, prompt_logprobs=top)["prompt_logprobs"], PROMPT),
    ):
        assert scores[0] is None
        assert len(scores) == len(tokens)
        for token, entries in zip(tokens[1:], scores[1:], strict=True):
            assert entries[str(token)]["decoded_token"] == chr(token)
            assert entries[str(token)]["logprob"] <= 0
            others = [entries[key]["rank"] for key in entries if key != str(token)]
            assert others == list(range(1, top + 1))


def test_echo_and_prompt_logprobs_may_ask_for_different_numbers(cat: RunningServer):
    choice = text(cat, echo=True, logprobs=1, prompt_logprobs=3)
    assert len(choice["logprobs"]["top_logprobs"][1]) <= 2
    assert len(choice["prompt_logprobs"][1]) in (3, 4)


def test_streams_have_no_log_probabilities_of_the_prompt(cat: RunningServer):
    for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
        fields = {"stream": True, "prompt_logprobs": 1}
        refused = cat.http.post(path, json=body | fields)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "prompt_logprobs"
        assert cat.http.post(path, json=body | fields | {"prompt_logprobs": 0}).status_code == 200


def test_bad_words_are_never_said(cat: RunningServer):
    def said(**fields: Any) -> tuple[str, str]:
        message = chat(cat, max_tokens=5, **fields)["choices"][0]["message"]["content"]
        return text(cat, max_tokens=5, **fields)["text"], message

    assert said(bad_words=["dog"]) == ("cat", "cat")
    # The model says what it can instead, as the fake one does: the first token that is allowed.
    assert said(bad_words=["cat"]) == ("ca\0", "ca\0")
    assert said(bad_words=["c"]) == ("\0at", "\0at")


def test_only_allowed_tokens_are_said(cat: RunningServer):
    assert text(cat, allowed_token_ids=[*b"ct", END])["text"] == "cct"
    assert text(cat, allowed_token_ids=[122], max_tokens=3)["text"] == "zzz"


def test_rules_for_tokens_hold_beside_a_form(cat: RunningServer):
    form = {"structured_outputs": {"choice": ["cat", "cow", "dog"]}}
    assert text(cat, **form)["text"] == "cat"
    assert text(cat, **form, bad_words=["ca"])["text"] == "cow"
    assert text(cat, **form, allowed_token_ids=[*b"dog", END])["text"] == "dog"


def test_a_form_and_rules_that_leave_nothing_fail_alone(cat: RunningServer):
    form = {"structured_outputs": {"choice": ["cat"]}}
    refused = cat.http.post("/v1/completions", json=TEXT | form | {"allowed_token_ids": [120]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "allowed_token_ids"
    later = cat.http.post("/v1/completions", json=TEXT | form | {"allowed_token_ids": [*b"c"]})
    assert later.status_code == 500  # only once it is written can it be known
    assert text(cat)["text"] == "cat"


def test_a_budget_for_thinking(converse: Callable[..., RunningServer]):
    server = converse("<think>" + "m" * 30 + "</think>Yes.")

    def thought(**fields: Any) -> int:
        answer = chat(server, max_tokens=200, **fields)
        count: int = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        return count

    unlimited = thought()
    assert thought(thinking_token_budget=-1) == unlimited
    assert thought(thinking_token_budget=10) < thought(thinking_token_budget=20) < unlimited


def test_prompts_may_be_cut(cat: RunningServer):
    def read(**fields: Any) -> bytes:
        return bytes(text(cat, prompt="Hello", return_token_ids=True, **fields)["prompt_token_ids"])

    assert read(truncate_prompt_tokens=2) == b"lo"
    assert read(truncate_prompt_tokens=2, truncation_side="right") == b"He"
    assert read(truncate_prompt_tokens=9) == read(truncate_prompt_tokens=-1) == b"Hello"
    long = text(cat, prompt="x" * 600, truncate_prompt_tokens=-1, max_tokens=12)
    assert long["finish_reason"] == "stop"
    refused = cat.http.post("/v1/chat/completions", json=CHAT | {"truncate_prompt_tokens": 3})
    assert refused.json()["error"]["param"] == "truncate_prompt_tokens"


def test_llama_cpps_names_mean_the_same(cat: RunningServer):
    assert text(cat, n_predict=2)["text"] == "ca"
    assert chat(cat, n_predict=2)["choices"][0]["message"]["content"] == "ca"
    assert text(cat, n_predict=-1)["text"] == "cat"
    for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
        for fields, blamed in (
            ({"n_predict": 2, "max_tokens": 3}, "max_tokens"),
            ({"repeat_penalty": 2, "repetition_penalty": 1.5}, "repetition_penalty"),
        ):
            refused = cat.http.post(path, json=body | fields)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == blamed


def test_hints_are_taken_and_said(cat: RunningServer):
    hints = {"cache_prompt": False, "id_slot": 0, "timings_per_token": True, "request_id": "r"}
    for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
        answer = cat.http.post(path, json=body | hints)
        assert answer.status_code == 200
        assert set(answer.headers["x-caudal-ignored"].split(", ")) == hints.keys()


@pytest.mark.parametrize(
    ("field", "off", "on"),
    [
        ("use_beam_search", False, True),
        ("spaces_between_special_tokens", True, False),
        ("vllm_xargs", {}, {"a": 1}),
        ("logprob_token_ids", [], [5]),
        ("mirostat", 0, 2),
        ("dry_multiplier", 0.0, 0.8),
        ("xtc_probability", 0.0, 0.5),
        ("dynatemp_range", 0, 0.5),
        ("top_n_sigma", -1, 1.0),
        ("t_max_predict_ms", 0, 100),
        ("n_probs", 0, 5),
    ],
)
def test_what_is_not_offered_is_refused_unless_it_is_off(
    cat: RunningServer, field: str, off: Any, on: Any
):
    for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
        assert cat.http.post(path, json=body | {field: off}).status_code == 200
        refused = cat.http.post(path, json=body | {field: on})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == field


def test_a_schema_needs_no_name(cat: RunningServer):
    form = {"type": "json_schema", "json_schema": {"schema": {"const": "foo"}}}
    message = chat(cat, response_format=form)["choices"][0]["message"]
    assert message["content"] == '"foo"'
