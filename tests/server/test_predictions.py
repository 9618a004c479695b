"""OpenAI's predicted outputs: which forms there are, and what usage says of them."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import CompletionUsage

from caudal.engine.drafting.speculation import Speculation
from support.fake_model import ScriptedExecutor
from support.running_server import RunningServer, Serve

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
ANSWER = "Hello there"


def text(*parts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": part} for part in parts]


@pytest.fixture
def guessing(serve: Serve) -> RunningServer:
    return serve(ScriptedExecutor(script=ANSWER.encode()), speculative=Speculation(adaptive=False))


def figures(usage: CompletionUsage | None) -> tuple[int | None, int | None]:
    """Tokens of the answer that were predicted, and predicted ones that didn't come."""
    assert usage is not None
    details = usage.completion_tokens_details
    assert details is not None
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


def test_a_prediction_is_text_or_parts_of_it(guessing: RunningServer):
    client = guessing.openai()
    for content, expected in (
        (ANSWER, (11, 0)),
        (text("Hello", " there"), (11, 0)),
        (text("Hello there", ", again"), (11, 7)),
        ("Help", (3, 1)),
        ("", (0, 0)),
        ([], (0, 0)),
        (text(""), (0, 0)),
    ):
        prediction: Any = {"type": "content", "content": content}
        answer = client.chat.completions.create(
            model="fake", messages=MESSAGES, prediction=prediction
        )
        assert answer.choices[0].message.content == ANSWER
        assert figures(answer.usage) == expected, content


def test_a_prediction_makes_answers_come_in_fewer_steps(serve: Serve):
    answer = "The cat sat on the mat, and then it slept there for the rest of the day."
    executor = ScriptedExecutor(script=answer.encode())
    client = serve(executor, speculative=Speculation(adaptive=False)).openai()
    predicted = answer.replace("cat", "dog")
    content = [{"type": "text", "text": predicted[:20]}, {"type": "text", "text": predicted[20:]}]
    usages = []
    for prediction in ({}, {"prediction": {"type": "content", "content": content}}):
        before = len(executor.batches)
        for more in ({}, {"n": 2, "logprobs": True, "stop": "rest"}):
            whole = client.chat.completions.create(
                model="fake",
                messages=MESSAGES,
                **prediction,
                **more,
                extra_body={"cache_salt": "a"},
            )
            for choice in whole.choices:
                assert choice.message.content == (answer.split("rest")[0] if more else answer)
            assert whole.usage is not None
            details = whole.usage.completion_tokens_details
            assert details is not None
            usages.append((details.accepted_prediction_tokens, details.rejected_prediction_tokens))
        steps = len(executor.batches) - before
    assert steps < 40
    assert usages[:2] == [(0, 0), (0, 0)]
    # What is behind "cat" is found again after three letters.
    first, second = usages[2:]
    assert first[0] + first[1] == len(answer)
    assert len(answer) - 9 <= first[0] < len(answer) - 3
    assert second[0] + second[1] == 2 * len(answer)


def test_a_prediction_for_which_nothing_is_guessed_is_ignored(serve: Serve):
    body = {
        "messages": MESSAGES,
        "max_tokens": 2,
        "prediction": {"type": "content", "content": "Hello"},
    }
    server = serve(ScriptedExecutor(script=b"Hello"), speculative=Speculation())
    for more, said in (({}, None), ({"speculative": "off"}, "prediction")):
        response = server.http.post("/v1/chat/completions", json=body | more)
        assert response.status_code == 200, response.text
        assert response.headers.get("x-caudal-ignored") == said
        details = response.json()["usage"]["completion_tokens_details"]
        figures = [details[f"{name}_prediction_tokens"] for name in ("accepted", "rejected")]
        assert figures == ([2, 3] if said is None else [0, 0])


def test_the_last_chunk_counts_what_was_predicted(guessing: RunningServer):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    extra: list[dict[str, Any]] = [{}, {"n": 2}, {"tools": [tool]}, {"max_completion_tokens": 4}]
    for more in extra:
        *chunks, last = guessing.openai().chat.completions.create(
            model="fake",
            messages=MESSAGES,
            prediction={"type": "content", "content": "Help"},
            stream=True,
            stream_options={"include_usage": True},
            **more,
        )
        answers = [""] * more.get("n", 1)
        for chunk in chunks:
            assert chunk.usage is None
            for choice in chunk.choices:
                answers[choice.index] += choice.delta.content or ""
        assert answers == [ANSWER[: more.get("max_completion_tokens")]] * len(answers)
        assert last.choices == []
        assert figures(last.usage) == (3 * len(answers), len(answers))


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("Hello", "prediction"),
        ({}, "prediction.type"),
        ({"content": "Hello"}, "prediction.type"),
        ({"type": "text", "content": "Hello"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": None}, "prediction.content"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": ["Hello"]}, "prediction.content[0]"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content[0].text"),
        (
            {"type": "content", "content": [*text("a"), {"type": "refusal", "text": "b"}]},
            "prediction.content[1].type",
        ),
    ],
)
def test_what_is_no_prediction_is_refused(hello: RunningServer, prediction: Any, param: str):
    body = {"model": "fake", "messages": MESSAGES, "prediction": prediction}
    refused = hello.http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["message"].startswith(param)
    del error["message"]
    assert error == {"type": "invalid_request_error", "param": param, "code": None}
