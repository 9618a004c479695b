from __future__ import annotations

import pytest

from support.fake_model import END, ScriptedExecutor, word
from support.running_server import RunningServer, Serve


def test_a_string(hello: RunningServer):
    answer = hello.openai().completions.create(model="fake", prompt="Say:")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    [choice] = answer.choices
    assert choice.text == "Hello, día!"
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4


def test_sixteen_tokens_by_default_and_null_for_as_many_as_fit(serve: Serve):
    client = serve(ScriptedExecutor(script=b"x" * 1000), max_model_len=100).openai()
    assert client.completions.create(model="fake", prompt="1234").choices[0].text == "x" * 16
    answer = client.completions.create(model="fake", prompt="1234", max_tokens=None)
    assert answer.choices[0].text == "x" * 96
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        (["a", "b"], ["first", "second"]),
        (list(b"a"), ["first"]),
        ([list(b"b"), list(b"a")], ["second", "first"]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_lists_and_tokens(serve: Serve, prompt: list[object], texts: list[str], stream: bool):
    executor = ScriptedExecutor(by_prompt={b"a": b"first", b"b": b"second"})
    client = serve(executor).openai()
    if not stream:
        answer = client.completions.create(model="fake", prompt=prompt, n=2)  # type: ignore[call-overload]
        assert [choice.index for choice in answer.choices] == list(range(2 * len(texts)))
        assert [choice.text for choice in answer.choices] == [t for t in texts for _ in range(2)]
        return
    streamed = [""] * (2 * len(texts))
    for chunk in client.completions.create(model="fake", prompt=prompt, n=2, stream=True):  # type: ignore[call-overload]
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [text for text in texts for _ in range(2)]


def test_usage_adds_up_over_prompts(hello: RunningServer):
    *chunks, last = hello.openai().completions.create(
        model="fake",
        prompt=["ab", "cde"],
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 6)
    assert len(chunks) == 6


def test_log_probabilities_as_parallel_lists(serve: Serve):
    client = serve(ScriptedExecutor(script=[*b"a ", word("día"), *b"!\xc3"])).openai()
    [choice] = client.completions.create(model="fake", prompt="x", logprobs=2).choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", " ", "día", "!", "bytes:\\xc3"]
    assert logprobs.text_offset == [0, 1, 2, 5, 6]
    assert choice.text == "a día!\ufffd"
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    for token, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert top[token] == logprob
        assert len(top) in (2, 3)


def test_log_probabilities_end_where_the_text_does(serve: Serve):
    client = serve(ScriptedExecutor(script=b"ab STOP cd")).openai()
    [choice] = client.completions.create(model="fake", prompt="x", logprobs=0, stop="STOP").choices
    assert choice.text == "ab "
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", " "]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt_too(hello: RunningServer, stream: bool):
    arguments = {"model": "fake", "prompt": "día", "echo": True, "logprobs": 1, "max_tokens": 2}
    if stream:
        choices = [
            chunk.choices[0]
            for chunk in hello.openai().completions.create(**arguments, stream=True)
        ]
    else:
        choices = hello.openai().completions.create(**arguments).choices
    assert "".join(choice.text for choice in choices) == "díaHe"
    tokens = [token for choice in choices for token in choice.logprobs.tokens]
    offsets = [offset for choice in choices for offset in choice.logprobs.text_offset]
    scores = [score for choice in choices for score in choice.logprobs.token_logprobs]
    assert tokens == ["d", "bytes:\\xc3", "bytes:\\xad", "a", "H", "e"]
    assert offsets == [0, 1, 1, 2, 3, 4]
    assert scores[0] is None
    assert all(score is not None for score in scores[1:])


@pytest.mark.parametrize("stream", [False, True])
def test_echo_without_new_tokens_scores_the_prompt_alone(hello: RunningServer, stream: bool):
    arguments = {"model": "fake", "prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 0}
    if stream:
        [chunk] = hello.openai().completions.create(**arguments, stream=True)
        [choice] = chunk.choices
    else:
        answer = hello.openai().completions.create(**arguments)
        [choice] = answer.choices
        assert answer.usage.completion_tokens == 0
    assert choice.text == "abc"
    assert choice.finish_reason == "length"
    assert len(choice.logprobs.tokens) == 3


def test_echo_of_token_ids_is_their_text(hello: RunningServer):
    answer = hello.openai().completions.create(
        model="fake", prompt=[word("OP!"), *b" x"], echo=True, max_tokens=1
    )
    assert answer.choices[0].text == "OP! xH"


def test_control_tokens_written_by_a_user_stay_text(hello: RunningServer):
    answer = hello.http.post("/tokenize", json={"model": "fake", "prompt": "<|end|>"}).json()
    tokens = list(b"<|end|>")
    assert answer == {"tokens": tokens, "token_strs": None, "count": 7, "max_model_len": 512}


def test_detokenize_names_control_tokens(hello: RunningServer):
    for count in (1, 5000):
        response = hello.http.post("/detokenize", json={"tokens": [ord("a"), END] * count})
        text = "a<|end|>" * count
        assert response.json() == {"prompt": text, "content": text}


def test_tokenize_and_detokenize_are_inverse(hello: RunningServer):
    text = "día " * 3000  # long enough to be tokenised beside the event loop
    tokens = hello.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    answer = hello.http.post("/detokenize", json={"model": "fake", "tokens": tokens})
    assert answer.json() == {"prompt": text, "content": text}
