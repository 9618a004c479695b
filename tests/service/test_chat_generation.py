from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from caudal.backends.executor import SampledToken, TokenLogprob
from caudal.chat.conversation import Conversation, Message, Tool
from caudal.chat.events import ContentDelta
from caudal.engine.request import FinishReason, Generate, Request, SequenceUpdate
from caudal.sampling_params import SamplingParams
from caudal.service.answers import ChatDelta
from caudal.service.chat_generation import ChatGeneration
from caudal.service.generation import Generation
from support.fake_model import END, ByteTokenizer
from support.fake_template import tool_chat

CALL = '<tool_call>{"name": "get", "arguments": {}}</tool_call>'


class Updates:
    """Those of an answer, all at once or token by token."""

    def __init__(self, text: str, size: int) -> None:
        tokens = [*text.encode(), END]
        sampled = [SampledToken(token, TokenLogprob(token, -1.0, 1, [])) for token in tokens]
        self._batches = [sampled[start : start + size] for start in range(0, len(sampled), size)]

    def cancel(self, *_: object) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Sequence[SequenceUpdate]]:
        for batch in self._batches:
            ended = batch is self._batches[-1]
            yield [
                SequenceUpdate(
                    request_id="r",
                    index=0,
                    tokens=batch,
                    finish_reason=FinishReason.STOP if ended else None,
                    stop_token=END if ended else None,
                )
            ]


def deltas(text: str, size: int, *, logprobs: int | None) -> list[ChatDelta]:
    conversation = Conversation(
        messages=[Message(role="user", content="Hi")], tools=[Tool(name="get")]
    )
    prompt = tool_chat().prepare(conversation)
    params = SamplingParams(max_tokens=None, logprobs=logprobs)
    tokenizer: Any = ByteTokenizer()
    request = Request(request_id="r", prompt=prompt.tokens, work=Generate(params))
    generation = Generation(request, Updates(text, size), tokenizer)

    async def collect() -> list[ChatDelta]:
        chat = ChatGeneration(generation, prompt.new_parser)
        async with contextlib.aclosing(chat.deltas()) as stream:
            return [delta async for batch in stream for delta in batch]

    return asyncio.run(collect())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_the_tokens_of_text_are_told_from_those_of_calls(size: int):
    found = deltas(f"<think>Hm.</think>Yes, día.{CALL}", size, logprobs=0)
    told = b"".join(
        bytes([token.id])
        for delta in found
        if any(isinstance(event, ContentDelta) for event in delta.events)
        for token in delta.tokens
    )
    assert told.removeprefix(b"</think>") == "Yes, día.".encode()
    assert (
        sum(len(delta.tokens) for delta in found)
        == len(f"<think>Hm.</think>Yes, día.{CALL}".encode()) + 1
    )
    assert found[-1].finish_reason == "tool_calls"


def test_what_has_come_together_stays_together_otherwise():
    [delta] = deltas(f"Yes.{CALL}", 1000, logprobs=None)
    assert delta.events[0] == ContentDelta("Yes.")
