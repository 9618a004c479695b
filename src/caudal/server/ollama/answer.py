"""Answers in Ollama's form: a line for what is new, and a last one with what it took."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from caudal.chat.events import (
    ChatEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallBegin,
    ToolCallEnd,
)
from caudal.server.encoding import encode_json_text, json_text
from caudal.server.openai.logprobs import LEAST_LOGPROB
from caudal.service.answers import ChatDelta, Delta, OutputToken, Usage
from caudal.service.observed import Timings


def created_at() -> str:
    """Now, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Times:
    """When a request arrived and its model was there, on the monotonic clock.

    Args:
        arrived: When the request had.
    """

    def __init__(self, arrived: float) -> None:
        self._arrived = arrived
        self._loaded = time.monotonic()

    def durations(self, usage: Usage) -> dict[str, int]:
        """In nanoseconds: what loading took, computing the prompt up to the first token, and then
        the rest of the answer; and all of it, the wait for its turn included.
        """
        timings = Timings.of(usage.times)
        spans = {
            "total_duration": time.monotonic() - self._arrived,
            "load_duration": self._loaded - self._arrived,
            "prompt_eval_duration": timings.prefill or 0.0,
            "eval_duration": timings.decode or 0.0,
        }
        return {name: max(1, round(seconds * 1e9)) for name, seconds in spans.items()}


class AnswerWriter(ABC):
    """Writes one answer, as it comes or as a whole.

    Args:
        model: The name that it is answered under.
        times: When what happened.
        with_logprobs: Whether tokens are told with their probabilities.
        with_top: Whether the likeliest in their place are told too.
    """

    def __init__(self, model: str, times: Times, *, with_logprobs: bool, with_top: bool) -> None:
        self._head = f'{{"model":{json_text(model)},"created_at":"'
        # What stands around the text of a line with nothing but text, which nearly all lines are.
        before, behind = json_text({**self._part("\0", "", ()), "done": False}).split('"\\u0000"')
        self._before_text, self._behind_text = before[1:], behind
        self._times = times
        self._with_logprobs = with_logprobs
        self._with_top = with_top
        self._call: dict[str, Any] = {}
        self._arguments = ""
        self._content = ""
        self._thinking = ""
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._reason = ""
        self.token_ids: list[int] = []

    # As it comes

    def write(self, delta: Delta | ChatDelta) -> Iterator[bytes]:
        """The lines of what is new; none of them is the last."""
        self._note(delta)
        text = None if self._with_logprobs else _plain_text(delta)
        if text is not None:
            written = f"{self._before_text}{json_text(text)}{self._behind_text}"
            yield encode_json_text(f'{self._head}{created_at()}",{written}') + b"\n"
            return
        logprobs = self._logprobs_of(delta.tokens)
        for part in self._parts(delta):
            if logprobs:
                part["logprobs"], logprobs = logprobs, []
            yield self._line(part)
        if logprobs:
            yield self._line({**self._part("", "", ()), "done": False, "logprobs": logprobs})

    def last(self, usage: Usage) -> bytes:
        """What ends a stream."""
        return self._line({**self._part("", "", ()), **self._end(usage)})

    # As a whole

    def add(self, delta: Delta | ChatDelta) -> None:
        """Take what is new."""
        self._note(delta)
        self._logprobs += self._logprobs_of(delta.tokens)
        if isinstance(delta, Delta):
            self._content += delta.text
            return
        for event in delta.events:
            match event:
                case ContentDelta(text):
                    self._content += text
                case ReasoningDelta(text):
                    self._thinking += text
                case _:
                    self._calls += self._complete_call(event)

    def whole(self, usage: Usage) -> bytes:
        """All that was taken."""
        part = self._part(self._content, self._thinking, self._calls) | self._end(usage)
        if self._logprobs:
            part["logprobs"] = self._logprobs
        return self._line(part)

    # What both APIs have of their own

    @abstractmethod
    def _part(
        self, content: str, thinking: str, calls: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """What is new, or all of it, without what all lines have."""

    def _more(self) -> dict[str, Any]:
        """What the end has besides."""
        return {}

    def _line(self, fields: Mapping[str, Any]) -> bytes:
        text = json_text(fields)
        return encode_json_text(f'{self._head}{created_at()}",{text[1:]}') + b"\n"

    def _end(self, usage: Usage) -> dict[str, Any]:
        durations = self._times.durations(usage)
        return {
            "done": True,
            "done_reason": self._reason,
            **self._more(),
            "total_duration": durations["total_duration"],
            "load_duration": durations["load_duration"],
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": durations["prompt_eval_duration"],
            "eval_count": usage.output_tokens,
            "eval_duration": durations["eval_duration"],
        }

    def _note(self, delta: Delta | ChatDelta) -> None:
        tokens = delta.tokens
        self.token_ids += (token.id for token in tokens if token.in_text)
        if delta.finish_reason is None:
            return
        self._reason = "length" if delta.finish_reason == "length" else "stop"
        if self._reason == "stop" and delta.stop_reason is None:
            # What ended the turn belongs to it, where a conversation goes on from there.
            self.token_ids += (token.id for token in tokens[-1:] if not token.in_text)

    def _parts(self, delta: Delta | ChatDelta) -> Iterator[dict[str, Any]]:
        if isinstance(delta, Delta):
            if delta.text:
                yield {**self._part(delta.text, "", ()), "done": False}
            return
        for event in delta.events:
            match event:
                case ContentDelta(text):
                    part = self._part(text, "", ())
                case ReasoningDelta(text):
                    part = self._part("", text, ())
                case _:
                    calls = self._complete_call(event)
                    if not calls:
                        continue
                    part = self._part("", "", calls)
            yield {**part, "done": False}

    def _complete_call(self, event: ChatEvent) -> list[dict[str, Any]]:
        """The call that an event completes; one that is cut short is none."""
        match event:
            case ToolCallBegin(index, identity, name):
                self._arguments = ""
                self._call = {"id": identity, "function": {"index": index, "name": name}}
            case ToolCallArgumentsDelta(_, text):
                self._arguments += text
            case ToolCallEnd():
                self._call["function"]["arguments"] = json.loads(self._arguments or "{}")
                return [self._call]
        return []

    def _logprobs_of(self, tokens: Iterable[OutputToken]) -> list[dict[str, Any]]:
        if not self._with_logprobs:
            return []

        def entry(piece: bytes, logprob: float) -> dict[str, Any]:
            text = piece.decode(errors="replace")
            return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(piece)}

        entries = []
        for token in tokens:
            if token.score is None or not token.in_text:
                continue
            made = entry(token.piece, token.score.logprob)
            if self._with_top:
                top = [entry(each.piece, each.logprob) for each in token.score.top]
                made["top_logprobs"] = top
            entries.append(made)
        return entries


def _plain_text(delta: Delta | ChatDelta) -> str | None:
    """The text of a delta that is nothing but text; None of others."""
    if isinstance(delta, Delta):
        return delta.text or None
    if len(delta.events) == 1 and isinstance(delta.events[0], ContentDelta):
        return delta.events[0].text
    return None
