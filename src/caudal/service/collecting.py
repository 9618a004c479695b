"""Streams of events put together, whoever made them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from caudal.chat.events import Answer
from caudal.service.answers import ChatDelta, CompleteAnswer, OutputToken


async def collect_answers(
    deltas: AsyncGenerator[list[ChatDelta], None], count: int
) -> list[CompleteAnswer]:
    """The whole answers of a chat, one per sequence.

    Args:
        deltas: All of them; closed in any case.
        count: How many sequences there are.
    """
    answers = [Answer() for _ in range(count)]
    tokens: list[list[OutputToken]] = [[] for _ in range(count)]
    complete: list[CompleteAnswer | None] = [None] * count
    async with contextlib.aclosing(deltas) as stream:
        async for new in stream:
            for delta in new:
                place = delta.index
                answers[place].add(delta.events)
                tokens[place] += delta.tokens
                if delta.finish_reason is not None:
                    complete[place] = CompleteAnswer(
                        answers[place], tokens[place], delta.finish_reason, delta.stop_reason
                    )
    return [answer for answer in complete if answer is not None]
