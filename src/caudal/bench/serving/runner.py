"""Sending a load: conversations that arrive, each asked turn by turn."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice, pairwise
from random import Random
from typing import Any

import msgspec
from httptools import HttpParserError

from caudal.bench.serving.answers import UNFINISHED, Answer, failure, judge
from caudal.bench.serving.arrivals import Arrivals
from caudal.bench.serving.conversation import Conversation, History, Turn
from caudal.bench.serving.http_client import StreamClient, StreamedAnswer
from caudal.bench.serving.settings import LoadSettings
from caudal.bench.serving.target import PATHS


@dataclass
class Progress:
    """How far a load is; who shows it reads it now and then.

    Attributes:
        phase: What is being measured.
        expected: How many requests there will be; None if that isn't known.
        until: Seconds that it will take; None if the number of requests decides.
        began: On `time.perf_counter`.
        sent: Requests sent.
        ended: Of these, how many ended.
        output_tokens: Tokens of those that ended.
        errors: How many failed, by kind.
    """

    phase: str = ""
    expected: int | None = None
    until: float | None = None
    began: float = 0.0
    sent: int = 0
    ended: int = 0
    output_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def begin(self, phase: str, until: float | None) -> None:
        """Something else is measured from now on."""
        self.phase, self.expected, self.until = phase, None, until
        self.began = time.perf_counter()
        self.sent = self.ended = self.output_tokens = 0
        self.errors.clear()


@dataclass(frozen=True, slots=True)
class Load:
    """What to send.

    Attributes:
        conversations: Who arrives, in this order.
        arrivals: When.
        requests: How many conversations; None if time decides.
        duration: Seconds for which new ones begin; None if their number decides.
        random: Decides the times.
    """

    conversations: Iterator[Conversation]
    arrivals: Arrivals
    requests: int | None
    duration: float | None
    random: Random


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a load.

    Attributes:
        answers: All requests that were sent, in the order of their ends.
        interrupted: Whether it was broken off.
    """

    answers: list[Answer]
    interrupted: bool


class Sender:
    """Sends loads to one server.

    Args:
        client: Leads there.
        model: The server's name for the model.
        settings: How requests are asked.
        progress: Told what happens.
    """

    def __init__(
        self, client: StreamClient, model: str, settings: LoadSettings, progress: Progress
    ) -> None:
        assert settings.api is not None
        self._client = client
        self._path = PATHS[settings.api]
        self._progress = progress
        self._head = {"model": model}
        self._fields: dict[str, Any] = {
            "temperature": settings.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._ignore_eos = bool(settings.ignore_eos)
        self._extra = settings.extra_body

    async def send(self, load: Load) -> Outcome:
        """Send a load and wait for all answers.

        Where the task is cancelled meanwhile, what is under way is given up, and the answers so
        far are what came of it.
        """
        conversations = load.conversations
        if load.requests is not None:  # made before the clock runs
            made = list(islice(conversations, load.requests))
            self._progress.expected = sum(len(each.turns) for each in made)
            conversations = iter(made)
        run = _Run(self, conversations, load)
        try:
            await run.all()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return Outcome(run.answers, interrupted=True)
        return Outcome(run.answers, interrupted=False)

    async def ask(self, turn: Turn, history: History, answer: Answer, start: float) -> bool:
        """Send one request; `answer`, which knows its place and when it was due, learns the rest.

        Returns:
            Whether the conversation may go on.
        """
        body = self._body(turn, history)
        progress = self._progress
        progress.sent += 1
        answer.sent = time.perf_counter() - start
        fault: tuple[str, str] | None
        try:
            response = await self._client.post(self._path, body)
        except (OSError, HttpParserError) as error:
            fault = failure(error)
            answer.ended = time.perf_counter() - start
        except asyncio.CancelledError:
            answer.error, answer.ended = UNFINISHED, time.perf_counter() - start
            raise
        else:
            answer.ended = time.perf_counter() - start
            fault = self._read(response, turn, history, answer, start)
        progress.ended += 1
        progress.output_tokens += answer.output_tokens
        if fault is None:
            return True
        answer.error, answer.message = fault
        progress.errors[answer.error] += 1
        return False

    @staticmethod
    def _read(
        response: StreamedAnswer, turn: Turn, history: History, answer: Answer, start: float
    ) -> tuple[str, str] | None:
        stream, fault = judge(response, turn)
        times = stream.times
        if times:
            answer.first = times[0] - start
            answer.gaps = [round(1e6 * (later - earlier)) for earlier, later in pairwise(times)]
        answer.output_tokens = len(times) if stream.output_tokens is None else stream.output_tokens
        answer.prompt_tokens = stream.prompt_tokens or turn.prompt_tokens
        answer.cached_tokens = stream.cached_tokens
        if turn.prompt is None:
            history.hear(stream)
        return fault

    def _body(self, turn: Turn, history: History) -> bytes:
        asked: dict[str, Any] = dict(self._head)
        if turn.prompt is None:
            asked["messages"] = history.ask(turn)
        else:
            asked["prompt"] = turn.prompt
        asked["max_tokens"] = turn.max_tokens
        asked |= self._fields
        if self._ignore_eos and turn.exact_length:
            asked["ignore_eos"] = True
        return msgspec.json.encode({**asked, **turn.fields, **self._extra})


class _Run:
    """One load being sent."""

    def __init__(self, sender: Sender, conversations: Iterator[Conversation], load: Load) -> None:
        self._sender = sender
        self._numbered = zip(count(), conversations)
        self._load = load
        self._start = time.perf_counter()
        self.answers: list[Answer] = []

    async def all(self) -> None:
        """Send everything. Cancelled, it gives up what is under way."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            if self._load.arrivals.rate is None:
                assert self._load.arrivals.concurrency is not None
                tasks |= {
                    asyncio.create_task(self._user())
                    for _ in range(self._load.arrivals.concurrency)
                }
            else:
                await self._arrive(tasks)
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _is_over(self, when: float) -> bool:
        return self._load.duration is not None and when >= self._load.duration

    async def _user(self) -> None:
        """Closed loop: the next conversation when the one before has ended."""
        while not self._is_over(self._now) and (each := next(self._numbered, None)) is not None:
            await self._play(*each, self._now)

    async def _arrive(self, tasks: set[asyncio.Task[None]]) -> None:
        """Open loop: a task for each conversation, when it is due."""
        concurrency = self._load.arrivals.concurrency
        turns = contextlib.nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)

        async def play(number: int, conversation: Conversation, due: float) -> None:
            async with turns:
                await self._play(number, conversation, due)

        for due in self._load.arrivals.times(self._load.random):
            if self._is_over(due) or (each := next(self._numbered, None)) is None:
                return
            while (left := due - self._now) > 0:  # timers of uvloop are early by up to 1 ms
                await asyncio.sleep(left)
            tasks.add(asyncio.create_task(play(*each, due)))

    async def _play(self, number: int, conversation: Conversation, due: float) -> None:
        history = History()
        for place, turn in enumerate(conversation.turns):
            if place:
                due = self._now + turn.think
                await asyncio.sleep(turn.think)
            answer = Answer(due=due, sent=due, ended=due, conversation=number, turn=place)
            self.answers.append(answer)
            if not await self._sender.ask(turn, history, answer, self._start):
                return
