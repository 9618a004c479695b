from __future__ import annotations

import math
from typing import Any

import pytest

from caudal import SamplingParams
from caudal.errors import ParameterError
from caudal.sampling_params import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKEN_IDS,
)

HUGE = 10**5000
"""Too long for Python to write in decimal, and too large for a float."""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[
            (field, value)
            for field in ("n", "top_k", "min_tokens", "max_tokens", "seed", "logprobs")
            for value in (HUGE, -HUGE, 1.0, "1", True)
        ],
        *[
            (field, value)
            for field in ("temperature", "top_p", "min_p", "repetition_penalty")
            for value in (HUGE, -HUGE, math.nan, math.inf, -math.inf, "1", None)
        ],
        ("logit_bias", {1: HUGE}),
        ("logit_bias", [1]),
        ("stop", 5),
        ("stop", [b"x"]),
        ("stop", "x" * (MAX_STOP_LENGTH + 1)),
        ("stop_token_ids", 5),
        ("stop_token_ids", [0] * (MAX_STOP_TOKEN_IDS + 1)),
        ("allowed_token_ids", []),
        ("allowed_token_ids", ["1"]),
        ("allowed_token_ids", 5),
        ("bad_words", "word"),
        ("bad_words", [""]),
        ("bad_words", [7]),
        ("bad_words", ["x" * (MAX_BAD_WORD_LENGTH + 1)]),
        ("bad_words", ["x"] * (MAX_BAD_WORDS + 1)),
        ("ignore_eos", 1),
        ("skip_special_tokens", "yes"),
        ("include_stop_str_in_output", None),
    ],
    ids=lambda value: value[:16] if isinstance(value, str) else type(value).__name__,
)
def test_nonsense_is_refused_by_name(field: str, value: Any):
    with pytest.raises(ParameterError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 1e-300),
        ("temperature", 100),
        ("repetition_penalty", 1e-300),
        ("top_p", 1),
        ("seed", 2**64 - 1),
        ("seed", -(2**63)),
        ("max_tokens", None),
        ("stop", None),
        ("stop", ("a", "b")),
        ("logit_bias", None),
    ],
)
def test_the_edges_of_what_is_allowed(field: str, value: Any):
    SamplingParams(**{field: value})
