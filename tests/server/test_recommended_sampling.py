"""What a model's maker recommends holds where a request says nothing, in every API."""

from __future__ import annotations

from typing import Any

import pytest

from caudal.sampling_params import NO_RECOMMENDATION, RecommendedSampling
from caudal.server.anthropic.schema import MessageRequest
from caudal.server.llama_cpp.completion_schema import default_params
from caudal.server.openai.chat_schema import ChatCompletionRequest
from caudal.server.openai.responses_schema import ResponseRequest
from caudal.server.openai.schema import CompletionRequest

RECOMMENDED = RecommendedSampling(temperature=0.6, top_k=20, repetition_penalty=1.1)
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatCompletionRequest, {"messages": MESSAGES}),
        (CompletionRequest, {"prompt": "Hi"}),
        (ResponseRequest, {"input": "Hi"}),
        (MessageRequest, {"messages": MESSAGES, "max_tokens": 9}),
    ],
)
def test_recommendations_fill_what_a_body_leaves_out(kind: Any, body: dict[str, Any]) -> None:
    def sampled(recommended: RecommendedSampling, **fields: Any) -> tuple[float, ...]:
        params = kind.model_validate({"model": "m", **body, **fields}).sampling_params(recommended)
        return params.temperature, params.top_k, params.repetition_penalty

    assert sampled(RECOMMENDED) == (0.6, 20, 1.1)
    assert sampled(RECOMMENDED, temperature=0, top_k=5) == (0, 5, 1.1)
    assert sampled(NO_RECOMMENDATION) == (1.0, 0, 1.0)


def test_llama_cpps_defaults_give_way_too() -> None:
    params = default_params(RECOMMENDED)
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.95)
    assert default_params(NO_RECOMMENDATION).temperature == 0.8
