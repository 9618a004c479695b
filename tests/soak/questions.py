"""What the clients ask, and how it is answered when nobody else asks."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import httpx

WORDS = ("river", "stone", "light", "nine", "and", "over", "a", "quiet", "bridge", "of")
SHARED = " ".join(WORDS * 6)
"""What many prompts begin with, so that they share blocks."""


@dataclass(frozen=True)
class Question:
    """A request, by what decides its answer."""

    prompt: str
    max_tokens: int
    temperature: float
    seed: int
    n: int = 1

    def body(self, model: str, *, stream: bool) -> dict[str, Any]:
        """What is sent."""
        return {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "n": self.n,
            "ignore_eos": True,
            "stream": stream,
        }


Answers = dict[Question, list[str]]


def questions(count: int, seed: int) -> list[Question]:
    """Short and long ones, alike and unlike, greedy and sampled."""
    generator = random.Random(seed)
    made = []
    for _ in range(count):
        begin = SHARED if generator.random() < 0.5 else ""
        words = " ".join(generator.choices(WORDS, k=generator.randrange(1, 60)))
        made.append(
            Question(
                prompt=f"{begin} {words}",
                max_tokens=generator.choice((1, 4, 16, 48)),
                temperature=generator.choice((0.0, 0.9)),
                seed=generator.randrange(1000),
                n=generator.choice((1, 1, 1, 3)),
            )
        )
    return made


async def answers_alone(http: httpx.AsyncClient, model: str, asked: list[Question]) -> Answers:
    """What each is answered with nobody in the way."""
    answers: Answers = {}
    for question in asked:
        reply = await http.post("/v1/completions", json=question.body(model, stream=False))
        assert reply.status_code == 200, reply.text
        answers[question] = texts(reply.json())
        await asyncio.sleep(0)
    return answers


def texts(reply: dict[str, Any]) -> list[str]:
    """The texts of an answer, in order."""
    choices = sorted(reply["choices"], key=lambda choice: choice["index"])
    return [choice["text"] for choice in choices]


class StreamedTexts:
    """A streamed answer, put together.

    Args:
        count: How many texts it has.
    """

    def __init__(self, count: int) -> None:
        self.texts = [""] * count
        self._ended = [False] * count
        self.error: dict[str, Any] | None = None
        self.done = False

    @property
    def whole(self) -> bool:
        """Whether all of it came."""
        return self.done and all(self._ended)

    def add(self, line: str) -> None:
        """A line of the stream."""
        if not line.startswith("data: "):
            return
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = event["error"]
            return
        for choice in event["choices"]:
            self.texts[choice["index"]] += choice["text"]
            self._ended[choice["index"]] |= choice["finish_reason"] is not None
