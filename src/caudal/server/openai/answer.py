"""What answers of all kinds share: their envelope, their usage, and several prompts at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from caudal.errors import CaudalError
from caudal.server.encoding import json_text
from caudal.server.errors import error_event
from caudal.server.openai.logprobs import LEAST_LOGPROB
from caudal.server.streaming import DONE, encode_event, encode_event_text
from caudal.service.answers import CascadeUsage, Delta, UnusedAnswer, Usage
from caudal.service.service import RunningText

T = TypeVar("T")

OBFUSCATED_SIZE = 256
"""Bytes of which the size of an obfuscated event is a multiple."""

logger = logging.getLogger("caudal.server")


class Envelope:
    """The fields that an answer and all chunks of a stream have in common."""

    def __init__(self, prefix: str, kind: str, model: str, fingerprint: str, **more: Any) -> None:
        self._fields: dict[str, Any] = {
            "id": f"{prefix}-{secrets.token_hex(16)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
            **more,
        }

    def wrap(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """An answer or chunk with these choices."""
        return self._fields | {"choices": choices} | more

    def around_choice(self, **more: Any) -> tuple[str, str]:
        """What stands before and behind the JSON of a chunk's only choice."""
        # Within a string, say the model's name, the quotes would be escaped.
        before, behind = json_text(self.wrap([{}], **more)).split('"choices":[{}]')
        return f'{before}"choices":[', f"]{behind}"


def usage(usages: Sequence[Usage]) -> dict[str, Any]:
    """OpenAI's usage over all prompts of a request; cached tokens are part of the prompt's.

    It is of the answer that is sent; what other models computed for it first is told besides.
    """
    prompt = sum(each.prompt_tokens for each in usages)
    completion = sum(each.output_tokens for each in usages)
    whole = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in usages)},
    }
    first = usages[0]
    if isinstance(first, CascadeUsage) and first.unused:  # what is the same for all prompts
        whole["unused_answers"] = [_unused(each) for each in first.unused]
    return whole


def _unused(answer: UnusedAnswer) -> dict[str, Any]:
    return {
        "model": answer.model,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.output_tokens,
        "mean_logprob": max(answer.mean_logprob, LEAST_LOGPROB),
    }


def usage_of(texts: Sequence[RunningText]) -> dict[str, Any]:
    """The usage of continued prompts, so far."""
    return usage([text.usage for text in texts])


def merge(generations: Sequence[RunningText], n: int) -> AsyncGenerator[list[Delta], None]:
    """The deltas of a request's prompts as they come, with sequences numbered over all of them.

    Args:
        generations: One for each prompt.
        n: How many sequences each has.
    """
    # Nearly all requests have one prompt, and that needs no layer more for its tokens to pass.
    return generations[0].deltas() if len(generations) == 1 else _merge(generations, n)


async def _merge(generations: Sequence[RunningText], n: int) -> AsyncGenerator[list[Delta], None]:
    arrivals: asyncio.Queue[list[Delta] | Exception | None] = asyncio.Queue()

    async def forward(place: int, generation: RunningText) -> None:
        first = place * n
        try:
            async with contextlib.aclosing(generation.deltas()) as stream:
                async for deltas in stream:
                    arrivals.put_nowait(
                        [replace(delta, index=first + delta.index) for delta in deltas]
                    )
        except Exception as error:
            arrivals.put_nowait(error)
        else:
            arrivals.put_nowait(None)

    tasks = [
        asyncio.ensure_future(forward(place, generation))
        for place, generation in enumerate(generations)
    ]
    try:
        running = len(tasks)
        while running:
            arrival = await arrivals.get()
            if isinstance(arrival, Exception):
                raise arrival
            if arrival is None:
                running -= 1
            else:
                yield arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def close_all(generations: Sequence[RunningText]) -> None:
    """Give up every prompt that still runs."""
    for generation in generations:
        await generation.aclose()


async def stream_events(
    updates: AsyncGenerator[T, None],
    choices: Callable[[T], Iterable[str]],
    envelope: Envelope,
    final_usage: Callable[[], dict[str, Any]] | None,
    *,
    continuous_usage: bool = False,
    obfuscate: bool = False,
    first: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncGenerator[bytes, None]:
    """A whole stream, encoded: chunks, usage if asked for, the end. Or an error, then the end.

    Args:
        updates: What the engine has, as it comes; closed in any case.
        choices: Makes of it the choice of each chunk, as JSON. A function, because every generator
            that a token wakes on its way costs more than what is done in it.
        envelope: Of this answer.
        final_usage: If given, its result is sent in a last chunk without choices, and all others
            have a null usage.
        continuous_usage: All others have the usage so far.
        obfuscate: Bring every chunk to a multiple of `OBFUSCATED_SIZE`, so that those who see only
            how much is sent learn little of what is sent.
        first: Further fields of the first chunk.
    """
    more: dict[str, Any] = {} if final_usage is None else {"usage": None}
    # A stream's chunks differ in their choice alone: all else is written once.
    before, behind = envelope.around_choice(**more)
    end = envelope.around_choice(**more, **first)[1] if first else behind
    counts = final_usage if continuous_usage else None
    encode = _encode_obfuscated if obfuscate else encode_event_text

    try:
        async with contextlib.aclosing(updates):
            async for new in updates:
                if counts is not None:
                    more = {"usage": counts()}
                    _, behind = envelope.around_choice(**more)
                    _, end = envelope.around_choice(**more, **first)
                    first = {}
                for choice in choices(new):
                    yield encode(f"{before}{choice}{end}")
                    end = behind
        if final_usage is not None:
            yield encode(json_text(envelope.wrap([], usage=final_usage())))
    except CaudalError as error:
        yield encode_event(error_event(error))
    except Exception as error:
        logger.exception("A stream failed.")
        yield encode_event(error_event(error))
    yield DONE


def _encode_obfuscated(chunk: str) -> bytes:
    return encode_event(obfuscated(json.loads(chunk)))


def obfuscated(chunk: dict[str, Any]) -> dict[str, Any]:
    """An event, padded."""
    missing = -len(encode_event(chunk | {"obfuscation": ""})) % OBFUSCATED_SIZE
    return chunk | {"obfuscation": secrets.token_urlsafe(missing)[:missing]}
