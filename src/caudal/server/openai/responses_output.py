"""An answer as the responses API has it: output items, whole and as a stream's typed events.

Whole answers are put together by what makes the events, so that the two can't differ.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from caudal.chat.events import (
    ContentDelta,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallBegin,
    ToolCallEnd,
)
from caudal.server.openai.logprobs import chat_logprobs
from caudal.server.openai.reasoning_seal import ReasoningSeal
from caudal.server.openai.responses_items import new_item_id
from caudal.server.openai.responses_tools import OfferedTool
from caudal.service.answers import ChatDelta
from caudal.service.service import RunningChat

Event = dict[str, Any]

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Items that are calls, each with the field of what it is called with."""


class ResponseWriter:
    """Writes one response.

    Args:
        fields: What the response repeats of its request.
        chat: The running answer; its counts of tokens go into the usage.
        tools: What the model was offered, by the names that it knows.
        with_logprobs: Whether text comes with log-probabilities.
        seal: Seals reasoning, where that is wanted.
        queued: Whether the response says that it waits until its first token comes.

    Attributes:
        identity: The response's id.
        output: The items that are complete.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        chat: RunningChat,
        tools: Mapping[str, OfferedTool],
        *,
        with_logprobs: bool,
        seal: ReasoningSeal | None = None,
        queued: bool = False,
    ) -> None:
        self._fields = fields
        self.identity = f"resp_{secrets.token_hex(16)}"
        self._queued = queued
        self._cancelled = False
        self._created = int(time.time())
        self._chat = chat
        self._tools = tools
        self._with_logprobs = with_logprobs
        self._seal = seal
        self._number = 0
        self._finish_reason: str | None = None
        self._error: str | None = None
        self._item: dict[str, Any] | None = None  # the one that is being written, as it began
        self._pieces: list[str] = []  # of its text, or of a call's arguments
        self._logprobs: list[Any] = []
        self.output: list[dict[str, Any]] = []

    def start(self) -> list[Event]:
        """The events that a stream begins with."""
        events = [self._event("response.created", response=self.response())]
        if self._queued:
            events.append(self._event("response.queued", response=self.response()))
            self._queued = False
        events.append(self._event("response.in_progress", response=self.response()))
        return events

    def write(self, delta: ChatDelta) -> list[Event]:
        """What is new, as events."""
        events = list(self._write_all(delta))
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
            # A call that is complete has ended its item; one that is open was cut short.
            in_call = self._item is not None and self._item["type"] in _CALLS
            cut = in_call or delta.finish_reason == "length"
            events += self._end_item("incomplete" if cut else "completed")
        return events

    def finish(self) -> Event:
        """The event that a stream ends with, once everything has been written."""
        response = self.response()
        return self._event(f"response.{response['status']}", response=response)

    def fail(self, message: str) -> Event:
        """The event that a stream ends with which can't go on."""
        self._error = message
        return self.finish()

    def cancel(self) -> Event:
        """The event that a stream ends with whose response was given up."""
        number = self._number
        for _ in self._end_item("incomplete"):  # it is in the response; nobody waits for its events
            pass
        self._number = number
        self._cancelled = True
        # There is no event of its own for it: clients know this one, and read the status.
        return self._event("response.incomplete", response=self.response())

    def response(self) -> dict[str, Any]:
        """The response, as far as it is complete."""
        status, incomplete = "queued" if self._queued else "in_progress", None
        if self._cancelled:
            status = "cancelled"
        elif self._error is not None:
            status = "failed"
        elif self._finish_reason == "length":
            status, incomplete = "incomplete", {"reason": "max_output_tokens"}
        elif self._finish_reason is not None:
            status = "completed"
        return {
            "id": self.identity,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None
            if self._error is None
            else {"code": "server_error", "message": self._error},
            "incomplete_details": incomplete,
            "output": list(self.output),
            "usage": None if status in ("queued", "in_progress") else self._usage(),
            **self._fields,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._chat.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": 0,  # caching is free: nothing is written on purpose
            },
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
        }

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _write_all(self, delta: ChatDelta) -> Iterator[Event]:
        logprobs = self._logprobs_of(delta)
        for event in delta.events:
            match event:
                case ContentDelta(text):
                    yield from self._begin_text("message")
                    yield self._text_delta("response.output_text.delta", text, logprobs=logprobs)
                    self._logprobs += logprobs
                    logprobs = []
                case ReasoningDelta(text):
                    yield from self._begin_text("reasoning")
                    yield self._text_delta("response.reasoning_text.delta", text)
                case ToolCallBegin(_, identity, name):
                    yield from self._begin_call(identity, name)
                case ToolCallArgumentsDelta(_, text):
                    self._pieces.append(text)
                    yield self._item_event(f"response.{self._call_field}.delta", delta=text)
                case ToolCallEnd():
                    yield from self._end_item("completed")

    def _logprobs_of(self, delta: ChatDelta) -> list[Any]:
        """Of the tokens behind a delta's text, but not those behind its reasoning."""
        if not self._with_logprobs:
            return []
        tokens = (token for token in delta.tokens if not token.in_reasoning)
        entries: list[Any] = chat_logprobs(tokens)["content"]
        return entries

    def _begin_call(self, identity: str, name: str) -> Iterator[Event]:
        offered = self._tools.get(name)
        fields = {"call_id": identity, "name": name if offered is None else offered.name}
        if offered is not None and offered.namespace is not None:
            fields["namespace"] = offered.namespace
        if offered is not None and offered.tool.text_input is not None:
            yield from self._begin("custom_tool_call", **fields, input="")
        else:
            yield from self._begin("function_call", **fields, arguments="")

    def _begin_text(self, kind: str) -> Iterator[Event]:
        if self._item is not None and self._item["type"] == kind:
            return
        if kind == "message":
            yield from self._begin(kind, role="assistant", content=[])
        else:
            yield from self._begin(kind, summary=[], content=[])
        yield self._item_event(
            "response.content_part.added", content_index=0, part=self._part("", [])
        )

    def _begin(self, kind: str, **fields: Any) -> Iterator[Event]:
        yield from self._end_item("completed")
        self._item = {"id": new_item_id(kind), "type": kind, "status": "in_progress", **fields}
        yield self._event(
            "response.output_item.added", output_index=len(self.output), item=self._item
        )

    @property
    def _call_field(self) -> str:
        """What the events of the call that is being written are named after."""
        assert self._item is not None
        kind = self._item["type"]
        return f"{kind}_{_CALLS[kind]}"

    def _text_delta(self, kind: str, text: str, **more: Any) -> Event:
        self._pieces.append(text)
        return self._item_event(kind, content_index=0, delta=text, **more)

    def _item_event(self, kind: str, **fields: Any) -> Event:
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self.output)}
        return self._event(kind, **place, **fields)

    def _part(self, text: str, logprobs: list[Any]) -> dict[str, Any]:
        """The one content part of the item that is being written."""
        assert self._item is not None
        if self._item["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
        if self._with_logprobs:
            part["logprobs"] = logprobs
        return part

    def _end_item(self, status: str) -> Iterator[Event]:
        if self._item is None:
            return
        text, self._pieces = "".join(self._pieces), []
        logprobs, self._logprobs = self._logprobs, []
        item = {**self._item, "status": status}
        if item["type"] in _CALLS:
            field = _CALLS[item["type"]]
            item[field] = text
            if status == "completed":
                yield self._item_event(f"response.{self._call_field}.done", **{field: text})
        else:
            part = self._part(text, logprobs)
            item["content"] = [part]
            if item["type"] == "reasoning" and self._seal is not None:
                item["encrypted_content"] = self._seal.close(text)
            done: dict[str, Any] = {"content_index": 0, "text": text}
            if item["type"] == "message":
                yield self._item_event("response.output_text.done", **done, logprobs=logprobs)
            else:
                yield self._item_event("response.reasoning_text.done", **done)
            yield self._item_event("response.content_part.done", content_index=0, part=part)
        yield self._event("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)
        self._item = None
