"""Chunks are put together from pieces; what comes out is what one dump would write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from caudal.server.encoding import json_text
from caudal.server.openai.answer import Envelope, stream_events
from caudal.server.streaming import encode_event

CHOICES: list[dict[str, Any]] = [
    {"index": 0, "text": 'á"\\\n\u2028🦙', "logprobs": None},
    {"index": 0, "text": "half a pair: \ud83e", "logprobs": {"token_logprobs": [-0.1, -1e-09]}},
]


@pytest.mark.parametrize("model", ["fake", 'a "choices":[{}] b', "modèle"])
@pytest.mark.parametrize("with_usage", [False, True])
def test_chunks_are_what_one_dump_writes(model: str, with_usage: bool):
    envelope = Envelope("cmpl", "text_completion", model, "print", service_tier="default")
    usage = {"total_tokens": 3}

    async def updates() -> AsyncGenerator[list[dict[str, Any]], None]:
        for choice in CHOICES:
            yield [choice]

    def choices(new: list[dict[str, Any]]) -> list[str]:
        return [json_text(choice) for choice in new]

    async def events() -> list[bytes]:
        final = (lambda: usage) if with_usage else None
        return [event async for event in stream_events(updates(), choices, envelope, final)]

    null: dict[str, Any] = {"usage": None} if with_usage else {}
    expected = [encode_event(envelope.wrap([choice], **null)) for choice in CHOICES]
    if with_usage:
        expected.append(encode_event(envelope.wrap([], usage=usage)))
    assert asyncio.run(events()) == [*expected, b"data: [DONE]\n\n"]
