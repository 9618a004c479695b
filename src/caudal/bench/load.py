"""Load for a server that speaks OpenAI's API, and what came of it: `caudal bench serve`.

Requests are token ids drawn at random, so that every server gets the same work whatever its
tokenizer, and each must generate exactly the tokens asked for: one that ends early counts as
failed. Arrivals don't wait for answers (open loop); `Arrivals.concurrency` bounds how many requests
are under way, and the time that a request waits for its turn counts as latency. Only where all
arrive at once does latency count from the turn: it would measure the length of the list otherwise.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from statistics import fmean
from typing import Any

from httptools import HttpParserError

from caudal.bench.http_client import StreamClient, StreamedAnswer, events
from caudal.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked for.

    Attributes:
        requests: How many requests.
        prompt_tokens: Random tokens of each prompt, besides its prefix.
        output_tokens: Tokens that each must generate.
        prefixes: Different prefixes that the prompts begin with, in turn; 0 for none.
        prefix_tokens: Length of a prefix.
        vocab_size: Prompts have ids below this.
        seed: The same seed asks for the same tokens at the same times.
    """

    requests: int
    prompt_tokens: int
    output_tokens: int
    prefixes: int = 0
    prefix_tokens: int = 0
    vocab_size: int
    seed: int = 0

    @property
    def prompt_length(self) -> int:
        """Tokens of a whole prompt."""
        return self.prompt_tokens + (self.prefix_tokens if self.prefixes else 0)

    def prompts(self) -> list[list[int]]:
        """The prompts, in order of arrival."""
        generator = random.Random(self.seed)

        def draw(length: int) -> list[int]:
            return [generator.randrange(self.vocab_size) for _ in range(length)]

        prefixes = [draw(self.prefix_tokens) for _ in range(self.prefixes)] or [[]]
        return [
            prefixes[number % len(prefixes)] + draw(self.prompt_tokens)
            for number in range(self.requests)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests come.

    Attributes:
        rate: Requests per second on average, as a Poisson process; infinite: all at once.
        concurrency: Most requests under way; those beyond wait at the client.
    """

    rate: float = math.inf
    concurrency: int

    def times(self, count: int, seed: int) -> list[float]:
        """Seconds after the start at which each request is due."""
        if math.isinf(self.rate):
            return [0.0] * count
        generator = random.Random(seed)
        times, now = [], 0.0
        for _ in range(count):
            times.append(now)
            now += generator.expovariate(self.rate)
        return times


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request's fate; times in seconds since the load began.

    Attributes:
        asked: From when its latency counts: when it was due, or with all due at once, its turn.
        first: When the first token came; None if none did.
        ended: When it ended.
        prompt_tokens: Tokens sent.
        output_tokens: Tokens that came, as the server counted them.
        error: Why it failed, or None.
    """

    asked: float
    first: float | None = None
    ended: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a server made of a load. Rates and latencies are of the requests that succeeded.

    Attributes:
        requests: Requests sent.
        failed: How many of them failed.
        errors: How often each reason for a failure occurred.
        seconds: From the first arrival to the end of the last answer.
        total_rate: Prompt and output tokens per second.
        output_rate: Output tokens per second.
        first_token: Seconds to the first token: mean, p50, p90 and p99.
        per_token: Seconds between the tokens after it, a request's mean: mean, p50, p90 and p99.
    """

    requests: int
    failed: int
    errors: Mapping[str, int]
    seconds: float
    total_rate: float
    output_rate: float
    first_token: Mapping[str, float]
    per_token: Mapping[str, float]

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> LoadReport:
        """Sum answers up."""
        good = [answer for answer in answers if answer.error is None]
        seconds = max(a.ended for a in answers) - min(a.asked for a in answers)
        output = sum(a.output_tokens for a in good)
        first = [a.first - a.asked for a in good if a.first is not None]
        gaps = [
            (a.ended - a.first) / (a.output_tokens - 1)
            for a in good
            if a.first is not None and a.output_tokens > 1
        ]
        return cls(
            requests=len(answers),
            failed=len(answers) - len(good),
            errors=dict(Counter(a.error for a in answers if a.error is not None)),
            seconds=seconds,
            total_rate=(output + sum(a.prompt_tokens for a in good)) / seconds,
            output_rate=output / seconds,
            first_token=distribution(first),
            per_token=distribution(gaps),
        )

    def to_json(self) -> str:
        """All of it, for programs."""
        return json.dumps(asdict(self))


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles (nearest rank); empty for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    ranks = {
        f"p{percent}": ordered[math.ceil(percent / 100 * len(ordered)) - 1]
        for percent in (50, 90, 99)
    }
    return {"mean": fmean(ordered), **ranks}


async def run_load(
    url: str, model: str, workload: Workload, arrivals: Arrivals, *, api_key: str | None = None
) -> LoadReport:
    """Send a load and wait for all answers.

    Args:
        url: The server, without `/v1`.
        model: Its name for the model.
        workload: What is asked for.
        arrivals: When.
        api_key: Sent as a bearer token.

    Raises:
        ParameterError: The address or a number makes no sense.
    """
    _check(workload, arrivals)
    prompts = workload.prompts()
    bodies = [json.dumps(_body(model, prompt, workload)).encode() for prompt in prompts]
    turns = asyncio.Semaphore(arrivals.concurrency)
    client = StreamClient(url, api_key)
    start = time.perf_counter()

    async def ask(body: bytes, due: float) -> _Asked:
        await asyncio.sleep(start + due - time.perf_counter())
        async with turns:
            asked = time.perf_counter() if math.isinf(arrivals.rate) else start + due
            response: StreamedAnswer | Exception
            try:
                response = await client.post("/v1/completions", body)
            except (OSError, HttpParserError) as failure:
                response = failure
            return _Asked(asked, time.perf_counter(), response)

    try:
        times = arrivals.times(workload.requests, workload.seed)
        finished = await asyncio.gather(*map(ask, bodies, times))
    finally:
        client.close()
    # Only now that nobody waits for it: reading a stream takes time that the server may need.
    return LoadReport.of([_judge(each, workload, start) for each in finished])


@dataclass(frozen=True, slots=True)
class _Asked:
    """What came of a request, not looked into; times on `time.perf_counter`."""

    asked: float
    ended: float
    response: StreamedAnswer | Exception


def _judge(finished: _Asked, workload: Workload, start: float) -> Answer:
    """Read the stream of a request. Whatever went wrong is the answer's error."""
    response = finished.response
    first, generated, error = None, 0, None
    if isinstance(response, Exception):
        error = f"{type(response).__name__}: {response}"
    elif response.status != HTTPStatus.OK:
        error = f"status {response.status}: {response.body.decode(errors='replace')[:200]}"
    else:
        first = response.first
        try:
            for event in events(response.body):
                if "error" in event:
                    error = f"error in the stream: {json.dumps(event['error'])[:200]}"
                    break
                generated = (event.get("usage") or {}).get("completion_tokens", generated)
        except ValueError as failure:
            error = f"{type(failure).__name__}: {failure}"
    if error is None and generated != workload.output_tokens:
        error = f"generated {generated} of {workload.output_tokens} tokens"
    return Answer(
        asked=finished.asked - start,
        first=None if first is None else first - start,
        ended=finished.ended - start,
        prompt_tokens=workload.prompt_length,
        output_tokens=generated,
        error=error,
    )


def _body(model: str, prompt: list[int], workload: Workload) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": workload.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _check(workload: Workload, arrivals: Arrivals) -> None:
    for name in ("requests", "prompt_tokens", "output_tokens", "vocab_size"):
        if getattr(workload, name) < 1:
            raise ParameterError(name, f"{name} must be at least 1.")
    if workload.prefixes < 0 or (workload.prefix_tokens < 1) != (workload.prefixes == 0):
        raise ParameterError("prefixes", "prefixes and prefix_tokens go together.")
    if arrivals.concurrency < 1:
        raise ParameterError("concurrency", "concurrency must be at least 1.")
    if not arrivals.rate > 0:
        raise ParameterError("rate", "rate must be positive.")
