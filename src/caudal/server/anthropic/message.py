"""An answer as Anthropic's API has it: content blocks, whole and as a stream's events.

Whole answers are put together by what makes the events, so that the two can't differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from caudal.chat.events import (
    ChatEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallBegin,
    ToolCallEnd,
)
from caudal.service.answers import ChatDelta
from caudal.service.service import RunningChat

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class MessageWriter:
    """Writes one answer.

    Args:
        model: Its name.
        chat: The running answer; its counts of tokens go into the usage.
        omits_thinking: Leave the text of thinking blocks out.
        ends_with_context: The context has no room for as many tokens as were asked for.
        applied_edits: What `context_management` cleared; None where the request has none.

    Attributes:
        content: The blocks that are complete.
    """

    def __init__(
        self,
        model: str,
        chat: RunningChat,
        *,
        omits_thinking: bool,
        ends_with_context: bool,
        applied_edits: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._identity = f"msg_{secrets.token_hex(12)}"
        self._model = model
        self._chat = chat
        self._omits_thinking = omits_thinking
        self._ends_with_context = ends_with_context
        # The beta's field is there only for those who ask for it.
        self._context_management: dict[str, Any] = (
            {}
            if applied_edits is None
            else {"context_management": {"applied_edits": list(applied_edits)}}
        )
        self._ending: ChatDelta | None = None
        self._block: dict[str, Any] | None = None  # the one that is being written, as it began
        self._pieces: list[str] = []  # of its text, or of a call's arguments
        self.content: list[dict[str, Any]] = []

    def start(self) -> dict[str, Any]:
        """The event that a stream begins with."""
        return {"type": "message_start", "message": self.message()}

    def write(self, delta: ChatDelta) -> list[dict[str, Any]]:
        """What is new, as events."""
        events = list(self._write_all(delta.events))
        if delta.finish_reason is not None:
            self._ending = delta
            events += self._end_block()
        return events

    def finish(self) -> list[dict[str, Any]]:
        """The events that a stream ends with, once everything has been written."""
        message = self.message()
        ending = {name: message[name] for name in message if name.startswith("stop_")}
        usage = {name: value for name, value in message["usage"].items() if name != "service_tier"}
        return [
            {
                "type": "message_delta",
                "delta": ending,
                "usage": usage,
                **self._context_management,
            },
            {"type": "message_stop"},
        ]

    def message(self) -> dict[str, Any]:
        """The message, as far as it is complete."""
        reason = stop = None
        if self._ending is not None:
            reason = _STOP_REASONS[self._ending.finish_reason or "stop"]
            if reason == "end_turn" and isinstance(self._ending.stop_reason, str):
                reason, stop = "stop_sequence", self._ending.stop_reason
            elif reason == "max_tokens" and self._ends_with_context:
                reason = "model_context_window_exceeded"
        return {
            "id": self._identity,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": list(self.content),
            "stop_reason": reason,
            "stop_sequence": stop,
            "stop_details": None,  # of refusals, which are no business of a server's
            "usage": self._usage(),
            **(self._context_management if self._ending is not None else {}),
        }

    def _usage(self) -> dict[str, Any]:
        """Anthropic counts prompt tokens once: as read from the cache, or as input.

        Everything is cached at no cost, so no tokens are counted as written to it.
        """
        usage = self._chat.usage
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
            "service_tier": "standard",
        }

    def _write_all(self, events: Iterable[ChatEvent]) -> Iterable[dict[str, Any]]:
        for event in events:
            match event:
                case ContentDelta(text):
                    yield from self._begin_text("text")
                    yield self._delta(text, {"type": "text_delta", "text": text})
                case ReasoningDelta(text):
                    yield from self._begin_text("thinking")
                    if not self._omits_thinking:
                        yield self._delta(text, {"type": "thinking_delta", "thinking": text})
                case ToolCallBegin(_, identity, name):
                    # Anthropic's ids say what they are of, as OpenAI's do.
                    identity = f"toolu_{identity.removeprefix('call_')}"
                    block = {"type": "tool_use", "id": identity, "name": name, "input": {}}
                    yield from self._begin(block)
                case ToolCallArgumentsDelta(_, text):
                    yield self._delta(text, {"type": "input_json_delta", "partial_json": text})
                case ToolCallEnd():
                    yield from self._end_block()

    def _begin_text(self, kind: str) -> Iterable[dict[str, Any]]:
        if self._block is None or self._block["type"] != kind:
            yield from self._begin(_EMPTY[kind])

    def _begin(self, block: dict[str, Any]) -> Iterable[dict[str, Any]]:
        yield from self._end_block()
        self._block = block
        index = len(self.content)
        yield {"type": "content_block_start", "index": index, "content_block": block}
        if index == 0:
            yield {"type": "ping"}

    def _delta(self, text: str, delta: dict[str, Any]) -> dict[str, Any]:
        self._pieces.append(text)
        return {"type": "content_block_delta", "index": len(self.content), "delta": delta}

    def _end_block(self) -> Iterable[dict[str, Any]]:
        block, self._block = self._block, None
        text, self._pieces = "".join(self._pieces), []
        if block is None:
            return
        index = len(self.content)
        match block["type"]:
            case "text":
                block = {**block, "text": text}
            case "thinking":
                signature = hashlib.sha256(text.encode(errors="replace")).hexdigest()
                block = {**block, "thinking": text, "signature": signature}
                delta = {"type": "signature_delta", "signature": signature}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            case _:
                block = {**block, "input": _parsed(text)}
        self.content.append(block)
        yield {"type": "content_block_stop", "index": index}


def _parsed(arguments: str) -> Any:
    """A call's arguments; of one that `max_tokens` cut short, what is complete.

    The official client reads streams in the same way.
    """
    with contextlib.suppress(ValueError, RecursionError):
        return _writable(json.loads(arguments))
    with contextlib.suppress(ValueError, RecursionError):
        return _writable(from_json(arguments, allow_partial=True))
    return {}


def _writable(value: Any) -> Any:
    """A value without numbers that JSON can't write, which models can: 1e999 and the like."""
    match value:
        case dict():
            return {name: _writable(item) for name, item in value.items()}
        case list():
            return [_writable(item) for item in value]
        case float() if math.isnan(value):
            return None
        case float() if math.isinf(value):
            return math.copysign(sys.float_info.max, value)
        case _:
            return value
