"""What the library returns: the shapes of vLLM's offline API."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from caudal.chat.events import (
    ChatEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallBegin,
    ToolCallEnd,
)
from caudal.service.answers import ChatDelta, Delta, OutputToken, TokenScore


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability.

    Attributes:
        logprob: Natural logarithm of its probability under the model's raw distribution.
        rank: 1 for the likeliest token, 2 for the next, …
        decoded_token: The token's text.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants to be run.

    Attributes:
        id: Names the call, for its result to refer to (`tool_call_id`).
        name: The tool.
        arguments: A JSON object, as text; a custom tool's text.
        type: Which of the two.
    """

    id: str
    name: str
    arguments: str
    type: Literal["function", "custom"] = "function"

    def to_dict(self) -> dict[str, Any]:
        """The call as it stands in a message."""
        given = "arguments" if self.type == "function" else "input"
        called = {"name": self.name, given: self.arguments}
        return {"id": self.id, "type": self.type, self.type: called}


@dataclass(slots=True)
class CompletionOutput:
    """One of a prompt's answers; from streams, what is new in it.

    Attributes:
        index: Which of the `n` answers.
        text: Its text, without the stop string; in chats, what is for the reader.
        token_ids: Its tokens, including the one that ended it.
        cumulative_logprob: Sum of the tokens' log-probabilities, where asked for.
        logprobs: One dictionary per token, by token id: the chosen one and the likeliest.
        finish_reason: "stop", "length", or "tool_calls" where the model wants tools to be run; None
            while it runs.
        stop_reason: The stop string or stop token id that ended it; None for end-of-sequence.
        reasoning: In chats, what the model thought before it answered; None where it didn't.
        tool_calls: In chats, the calls of tools; each comes when it is complete, or with the
            answer's end where that cut it short.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)

    def finished(self) -> bool:
        """Whether the answer has ended."""
        return self.finish_reason is not None

    def to_message(self) -> dict[str, Any]:
        """The answer of a chat as a message, to be put behind those that it answers."""
        content = self.text or (None if self.tool_calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.reasoning is not None:
            message["reasoning"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return message

    def append(self, delta: Delta | ChatDelta) -> None:
        """Add what is new, but for what a chat's events say: that is `ChatReader`'s."""
        if isinstance(delta, Delta):
            self.text += delta.text
        for token in delta.tokens:
            self.token_ids.append(token.id)
            score = token.score
            if score is not None:
                if self.logprobs is None:
                    self.logprobs = []
                self.logprobs.append(logprob_dict(token, score))
                self.cumulative_logprob = (self.cumulative_logprob or 0.0) + score.logprob
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


class ChatReader:
    """Reads one sequence's events.

    Args:
        custom: The names of custom tools.
    """

    def __init__(self, custom: Collection[str]) -> None:
        self._custom = custom
        self._begun: ToolCallBegin | None = None
        self._arguments = ""

    def read(self, events: Iterable[ChatEvent], output: CompletionOutput) -> None:
        """Add to an answer what events say."""
        for event in events:
            match event:
                case ContentDelta(text):
                    output.text += text
                case ReasoningDelta(text):
                    output.reasoning = (output.reasoning or "") + text
                case ToolCallBegin():
                    self._begun, self._arguments = event, ""
                case ToolCallArgumentsDelta(_, text):
                    self._arguments += text
                case ToolCallEnd():
                    self._end_call(output)
        if output.finished():
            self._end_call(output)

    def _end_call(self, output: CompletionOutput) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            kind: Literal["function", "custom"] = "function"
            if begun.name in self._custom:
                kind = "custom"
            output.tool_calls.append(ToolCall(begun.id, begun.name, self._arguments, kind))


@dataclass(slots=True)
class RequestOutput:
    """One prompt with its answers.

    Attributes:
        request_id: Unique among the requests of this process.
        prompt: The prompt's text; None where it was given as token ids, or as messages.
        prompt_token_ids: Its tokens.
        prompt_logprobs: Where asked for: None for the first token, then one dictionary per token.
        outputs: The `n` answers, in order.
        finished: Whether all of them have ended.
        num_cached_tokens: Prompt tokens that came from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A vector.

    Attributes:
        embedding: Its components.
    """

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """One prompt with its vector.

    Attributes:
        request_id: Unique among the requests of this process.
        outputs: The vector.
        prompt_token_ids: The prompt's tokens.
        finished: True.
    """

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How well two texts belong together.

    Attributes:
        score: The greater, the better.
    """

    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """One pair's score.

    Attributes:
        request_id: Unique among the requests of this process.
        outputs: The score.
        finished: True.
    """

    request_id: str
    outputs: ScoringOutput
    finished: bool


def logprob_dict(token: OutputToken, score: TokenScore) -> dict[int, Logprob]:
    """The token and the likeliest ones, by token id."""
    entries = {
        other.id: Logprob(other.logprob, rank, _text(other.piece))
        for rank, other in enumerate(score.top, start=1)
    }
    entries.setdefault(token.id, Logprob(score.logprob, score.rank, _text(token.piece)))
    return entries


def prompt_logprob_dicts(tokens: Sequence[OutputToken]) -> list[dict[int, Logprob] | None]:
    """Prompt log-probabilities in vLLM's shape; nothing comes before the first token."""
    return [None if each.score is None else logprob_dict(each, each.score) for each in tokens]


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")
