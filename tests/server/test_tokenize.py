"""Texts and conversations to tokens and back, in the forms of vLLM and of llama.cpp's server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.fake_model import END, ScriptedExecutor, changed, serve_fake
from support.running_server import RunningServer, running_server
from support.vocabularies import make_tokenizer, spm_metadata

MESSAGES = [{"role": "user", "content": "Hi"}]
PROMPT = "user:Hi\nassistant:"


def post(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_vllms_form(hello: RunningServer):
    answer = post(hello, "/tokenize", prompt="día")
    assert answer == {
        "tokens": list("día".encode()),
        "token_strs": None,
        "count": 4,
        "max_model_len": 512,
    }
    answer = post(hello, "/tokenize", prompt="ab", return_token_strs=True)
    assert answer["token_strs"] == ["a", "b"]
    answer = post(hello, "/tokenize", messages=MESSAGES, return_token_strs=True)
    assert "".join(answer["token_strs"]) == PROMPT


def test_llama_cpps_form(hello: RunningServer):
    assert post(hello, "/tokenize", content="ab") == {"tokens": [97, 98]}
    pieces = post(hello, "/tokenize", content="aí", with_pieces=True)["tokens"]
    assert pieces == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xAD, "piece": [0xAD]},
    ]


def test_llama_cpps_form_reads_control_tokens_unless_told_not_to(hello: RunningServer):
    text = "a<|end|>"
    assert post(hello, "/tokenize", content=text)["tokens"] == [97, END]
    plain = post(hello, "/tokenize", content=text, parse_special=False)["tokens"]
    assert plain == list(text.encode())
    assert post(hello, "/tokenize", prompt=text)["tokens"] == list(text.encode())


def test_detokenized_text_has_the_name_that_each_client_reads(hello: RunningServer):
    answer = post(hello, "/detokenize", tokens=[97, END])
    assert answer == {"prompt": "a<|end|>", "content": "a<|end|>"}


def test_special_tokens_are_added_where_asked_for(tmp_path: Path):
    tokenizer = make_tokenizer(tmp_path, spm_metadata({"▁a": -1.0}))
    assert tokenizer.add_bos
    bos = tokenizer.bos_id
    fake = serve_fake(ScriptedExecutor())
    with running_server(changed(fake, tokenizer=tokenizer)) as server:
        assert post(server, "/tokenize", prompt="a")["tokens"][0] == bos
        bare = post(server, "/tokenize", prompt="a", add_special_tokens=False)["tokens"]
        assert bos not in bare
        assert post(server, "/tokenize", content="a")["tokens"] == bare
        assert post(server, "/tokenize", content="a", add_special=True)["tokens"] == [bos, *bare]
        chat = post(server, "/tokenize", messages=MESSAGES)["tokens"]
        added = post(server, "/tokenize", messages=MESSAGES, add_special_tokens=True)["tokens"]
        assert added == [bos, *chat]


@pytest.mark.parametrize("body", [{"content": 7}, {"content": "a", "with_pieces": "x"}, {}])
def test_what_is_wrong_is_named(hello: RunningServer, body: dict[str, Any]):
    response = hello.http.post("/tokenize", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] in ("content", "with_pieces", "prompt")


def test_the_prompt_that_a_conversation_becomes(hello: RunningServer):
    assert post(hello, "/apply-template", messages=MESSAGES) == {"prompt": PROMPT}
    without = post(hello, "/apply-template", messages=MESSAGES, add_generation_prompt=False)
    assert without == {"prompt": "user:Hi"}
    refused = hello.http.post(
        "/apply-template", json={"messages": [{"role": "system", "content": "x"}]}
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "System role not supported"
