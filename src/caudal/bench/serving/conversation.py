"""What one user asks for: a prompt, or a conversation whose history grows with the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caudal.bench.serving.streams import Stream, ToolCall

Message = Mapping[str, Any]

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request.

    Attributes:
        prompt: Text or token ids, for completions; None in a conversation.
        messages: What comes behind the history: the user's words, or results of tools.
        calls: What the model has called before those results; where its answer had calls of its
            own, these stand in the history instead.
        max_tokens: Most tokens of the answer.
        exact_length: Whether the answer must have exactly so many.
        think: Seconds that the user takes before it.
        fields: Further fields of the request.
        check: Says what is wrong with an answer, if anything is.
        prompt_tokens: About how long the prompt is, with the history; 0 if that isn't known.
    """

    prompt: Prompt | None = None
    messages: Sequence[Message] = ()
    calls: Sequence[ToolCall] = ()
    max_tokens: int
    exact_length: bool = True
    think: float = 0.0
    fields: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Stream], str | None] | None = None
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, one after another.

    Attributes:
        turns: The requests.
    """

    turns: Sequence[Turn]


class History:
    """What has been said in a conversation so far."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def ask(self, turn: Turn) -> Sequence[Message]:
        """The messages of a turn's request."""
        messages = turn.messages
        if turn.calls and self._messages:
            messages = self._with_calls(turn)
        self._messages += messages
        return self._messages

    def hear(self, stream: Stream) -> None:
        """Add what the model answered."""
        message: dict[str, Any] = {"role": "assistant", "content": stream.text}
        if stream.calls:
            message["tool_calls"] = [_call_field(call) for call in stream.calls]
        self._messages.append(message)

    def _with_calls(self, turn: Turn) -> Sequence[Message]:
        """The results of a turn, behind calls that they are the results of."""
        answer = self._messages[-1]
        if "tool_calls" not in answer:
            self._messages[-1] = {**answer, "tool_calls": [_call_field(c) for c in turn.calls]}
            return turn.messages
        # As many results as the model made calls; those beyond ours are like the first.
        results = [each for each in turn.messages if each["role"] == "tool"]
        results += results[:1] * (len(answer["tool_calls"]) - len(results))
        return [
            {**result, "tool_call_id": call["id"]}
            for result, call in zip(results, answer["tool_calls"], strict=False)
        ]


def _call_field(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
