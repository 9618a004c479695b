"""EngineConfig refuses what cannot work, by name."""

from __future__ import annotations

from typing import Any

import pytest

from caudal.engine.config import EngineConfig
from caudal.errors import ParameterError


def test_defaults_are_valid() -> None:
    config = EngineConfig(max_model_len=2048)
    assert config.max_num_batched_tokens > config.max_num_seqs


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_model_len", 1),
        ("max_model_len", True),
        ("max_num_seqs", 0),
        ("max_num_seqs", 10**6),
        ("max_num_batched_tokens", 32),
        ("max_num_batched_tokens", 10**9),
        ("max_queue", -1),
        ("schedule", "random"),
        ("batching", "eager"),
        ("ageing", 0.0),
        ("ageing", float("nan")),
        ("max_queue_delay", -1.0),
        ("max_queue_delay", 1e10),
        ("preferred_batch_size", 0),
        ("request_timeout", 0.0),
        ("first_token_timeout", float("inf")),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: object) -> None:
    fields: dict[str, Any] = {"max_model_len": 2048, field: value}
    with pytest.raises(ParameterError, match=field) as caught:
        EngineConfig(**fields)
    assert caught.value.param == field
