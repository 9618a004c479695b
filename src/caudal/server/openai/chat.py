"""`POST /v1/chat/completions`, and counting what a conversation would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Response

from caudal.chat.conversation import Conversation
from caudal.chat.events import (
    Answer,
    ChatEvent,
    ContentDelta,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallBegin,
)
from caudal.server.asked import Asked, asks
from caudal.server.encoding import JSONReply, json_text
from caudal.server.openai.answer import Envelope, stream_events, usage
from caudal.server.openai.chat_schema import ChatCompletionRequest
from caudal.server.openai.logprobs import chat_logprobs, prompt_logprobs
from caudal.server.openapi import STREAMED
from caudal.server.streaming import EventStream, run_until_disconnect
from caudal.service.answers import ChatDelta, CompleteAnswer, OutputToken
from caudal.service.service import RunningChat
from caudal.service.work import ChatWork

router = APIRouter()


@router.post("/v1/chat/completions", responses=STREAMED)
async def create_chat_completion(
    asked: Annotated[Asked[ChatCompletionRequest], asks(ChatCompletionRequest, "generate")],
) -> Response:
    """Answer a conversation, whole or as a stream of chunks."""
    body, model = asked.body, asked.model
    params = body.sampling_params(asked.model.facts.loaded.sampling)
    conversation = body.conversation()
    asked.note_ignored(body.without_effect())
    work = ChatWork(
        conversation=conversation,
        params=params,
        thinking_budget=body.thinking_budget,
        show_prompt_ids=bool(body.return_token_ids),
        prediction="" if body.prediction is None else body.prediction.text,
    )
    generation = await model.chat(work, asked.context)
    asked.note_ignored(generation.ignored)
    tier = {} if body.service_tier is None else {"service_tier": "default"}
    writer = _Writer(body, conversation, generation)
    if body.stream:
        events = stream_events(
            generation.deltas(),
            writer.write,
            Envelope(
                "chatcmpl", "chat.completion.chunk", asked.name, model.info.fingerprint, **tier
            ),
            (lambda: _usage(generation)) if body.include_usage else None,
            continuous_usage=body.continuous_usage,
            obfuscate=body.obfuscate,
            first=writer.first,
        )
        return EventStream(events, generation.aclose)
    try:
        answers = await run_until_disconnect(asked.request, generation.collect())
    finally:
        await generation.aclose()
    envelope = Envelope("chatcmpl", "chat.completion", asked.name, model.info.fingerprint, **tier)
    more = {"usage": _usage(generation)} | writer.of_prompt()
    if body.metadata is not None:
        more["metadata"] = body.metadata
    choices = [writer.choice(index, answer) for index, answer in enumerate(answers)]
    return JSONReply(envelope.wrap(choices, **more))


@router.post("/v1/chat/completions/input_tokens")
async def count_input_tokens(
    asked: Annotated[Asked[ChatCompletionRequest], asks(ChatCompletionRequest, "generate")],
) -> dict[str, Any]:
    """How many tokens a request's prompt has; nothing is generated."""
    size = await asked.model.measure(asked.body.conversation())
    asked.note_ignored([*asked.body.without_effect(), *size.ignored])
    return {"object": "chat.completion.input_tokens", "input_tokens": size.tokens}


class _Writer:
    """Writes answers as choices; only a choice's first delta carries the role."""

    def __init__(
        self, body: ChatCompletionRequest, conversation: Conversation, chat: RunningChat
    ) -> None:
        self._chat = chat
        self._with_logprobs = bool(body.logprobs)
        self._as_ids = bool(body.return_tokens_as_token_ids)
        self._with_ids = bool(body.return_token_ids)
        self._prompt_top = body.prompt_logprobs
        self._plain = not self._with_logprobs and not self._with_ids
        self._custom = {tool.name for tool in conversation.tools if tool.text_input is not None}
        self._begun: set[int] = set()
        self._in_custom: set[int] = set()  # choices whose latest call is of a custom tool

    @property
    def first(self) -> dict[str, Any]:
        """What a stream's first chunk has beside its choice."""
        return {"prompt_token_ids": self._chat.prompt.token_ids} if self._with_ids else {}

    def of_prompt(self) -> dict[str, Any]:
        """What a whole answer says of its prompt; vLLM's clients read even the nulls."""
        scores = None
        if self._prompt_top is not None:
            scores = prompt_logprobs(self._chat.prompt_tokens, self._prompt_top)
        return {
            "prompt_logprobs": scores,
            "prompt_token_ids": self._chat.prompt.token_ids if self._with_ids else None,
        }

    def write(self, deltas: Sequence[ChatDelta]) -> Iterator[str]:
        """The choices of all chunks of these deltas, as JSON."""
        for delta in deltas:
            text = self._plain_content(delta)
            if text is not None:  # what nearly all chunks are
                yield (
                    f'{{"index":{delta.index},"delta":{{"content":{json_text(text)}}},'
                    '"logprobs":null,"finish_reason":null}'
                )
                continue
            for choice in self._chunks(delta):
                yield json_text(choice)

    def choice(self, index: int, complete: CompleteAnswer) -> dict[str, Any]:
        """The choice of a whole answer."""
        return {
            "index": index,
            "message": self._message(complete.answer),
            "logprobs": self._logprobs(complete.tokens) if self._with_logprobs else None,
            "finish_reason": complete.finish_reason,
            "stop_reason": complete.stop_reason,
            "token_ids": _ids(complete.tokens) if self._with_ids else None,
        }

    def _logprobs(self, tokens: Sequence[OutputToken]) -> dict[str, Any]:
        return chat_logprobs(tokens, as_ids=self._as_ids)

    def _plain_content(self, delta: ChatDelta) -> str | None:
        """The text of a delta that makes one chunk of nothing but content; None of others."""
        if not self._plain or delta.finish_reason is not None or len(delta.events) != 1:
            return None
        [event] = delta.events
        if isinstance(event, ContentDelta) and delta.index in self._begun:
            return event.text
        return None

    def _chunks(self, delta: ChatDelta) -> list[dict[str, Any]]:
        """A chunk for each event; the first has the tokens, the last how it ended."""
        parts = [
            part for event in delta.events if (part := self._delta(delta.index, event)) is not None
        ] or [{}]
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            # As at OpenAI: no content yet where something else comes first, such as a call.
            parts[0] = {"role": "assistant", "content": None if parts[0] else ""} | parts[0]
        choices: list[dict[str, Any]] = [
            {"index": delta.index, "delta": part, "logprobs": None, "finish_reason": None}
            for part in parts
        ]
        if self._with_logprobs:
            choices[0]["logprobs"] = self._logprobs(delta.tokens)
        if self._with_ids:
            choices[0]["token_ids"] = _ids(delta.tokens)
        if delta.finish_reason is not None:
            choices[-1] |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return choices

    def _message(self, answer: Answer) -> dict[str, Any]:
        beside = bool(answer.tool_calls or answer.reasoning)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.content or (None if beside else ""),
            "refusal": None,
        }
        if answer.reasoning:
            message["reasoning_content"] = message["reasoning"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, **self._call(call.name, call.arguments)}
                for call in answer.tool_calls
            ]
        return message

    def _call(self, name: str, given: str) -> dict[str, Any]:
        """What is called, with what: a function's arguments, or a custom tool's text."""
        if name in self._custom:
            return {"type": "custom", "custom": {"name": name, "input": given}}
        return {"type": "function", "function": {"name": name, "arguments": given}}

    def _delta(self, choice: int, event: ChatEvent) -> dict[str, Any] | None:
        """An event in a chunk's delta; the end of a call has none of its own."""
        match event:
            case ContentDelta(text):
                return {"content": text}
            case ReasoningDelta(text):
                return {"reasoning_content": text, "reasoning": text}
            case ToolCallBegin(index, identity, name):
                if name in self._custom:
                    self._in_custom.add(choice)
                else:
                    self._in_custom.discard(choice)
                call = {"index": index, "id": identity, **self._call(name, "")}
                return {"tool_calls": [call]}
            case ToolCallArgumentsDelta(index, text):
                if choice in self._in_custom:
                    return {"tool_calls": [{"index": index, "custom": {"input": text}}]}
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case _:
                return None


def _ids(tokens: Sequence[OutputToken]) -> list[int]:
    return [token.id for token in tokens]


def _usage(chat: RunningChat) -> dict[str, Any]:
    so_far = chat.usage
    details = {
        "reasoning_tokens": so_far.reasoning_tokens,
        "accepted_prediction_tokens": so_far.accepted_prediction_tokens,
        "rejected_prediction_tokens": so_far.rejected_prediction_tokens,
    }
    return usage([so_far]) | {"completion_tokens_details": details}
