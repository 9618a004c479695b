"""Who answers in `caudal run`: a model in this process, or one of a server that runs already."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from caudal.chat.conversation import Conversation, ReasoningEffort
    from caudal.chat.events import ChatEvent
    from caudal.service.service import Service

PLAIN_MAX_TOKENS = 256
"""Most tokens of a continuation by a base model, which seldom ends by itself."""

_TEMPERATURE = 0.7

_THINK: dict[ReasoningEffort, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
"""What Ollama's API calls how much a model is to think."""


class NoEffect:
    """Comes before an answer: how much the model is to think makes no difference to it."""


class Partner(Protocol):
    """Answers conversations, or continues texts."""

    @property
    def is_plain(self) -> bool:
        """Whether it only continues texts."""

    def answer(self, conversation: Conversation) -> AsyncGenerator[ChatEvent | NoEffect, None]:
        """The next message, as it comes. Raises `CaudalError` where it is refused."""

    def go_on(self, text: str) -> AsyncGenerator[str, None]:
        """How a text goes on, as it comes. Raises `CaudalError` where it is refused."""


class LocalPartner:
    """A model in this process.

    Args:
        service: The model.
        temperature: Of its answers; None: as its package or its maker has it.
    """

    def __init__(self, service: Service, temperature: float | None) -> None:
        from caudal.sampling_params import RecommendedSampling, SamplingParams

        self._service = service
        service.check_task("generate")
        defaults = service.facts.loaded.sampling.over(RecommendedSampling(temperature=_TEMPERATURE))
        chosen = {} if temperature is None else {"temperature": temperature}
        self._params = SamplingParams(**defaults.with_limit(chosen, None))

    @property
    def is_plain(self) -> bool:
        """See `Partner`."""
        return not self._service.has_chat_template

    async def answer(
        self, conversation: Conversation
    ) -> AsyncGenerator[ChatEvent | NoEffect, None]:
        """See `Partner`."""
        from caudal.service.work import ChatWork

        work = ChatWork(conversation=conversation, params=self._params)
        generation = await self._service.chat(work)
        if generation.ignored:
            yield NoEffect()
        async with contextlib.aclosing(generation.deltas()) as stream:
            async for deltas in stream:
                for delta in deltas:
                    for event in delta.events:
                        yield event

    async def go_on(self, text: str) -> AsyncGenerator[str, None]:
        """See `Partner`."""
        from caudal.service.work import CompletionWork

        # If there is no room, that is what is refused.
        remaining = self._service.max_model_len - len((await self._service.tokenize(text)).ids)
        most = self._params.max_tokens or PLAIN_MAX_TOKENS
        params = replace(self._params, max_tokens=max(1, min(most, remaining)))
        [generation] = await self._service.complete(CompletionWork(prompts=[text], params=params))
        async with contextlib.aclosing(generation.deltas()) as stream:
            async for deltas in stream:
                for delta in deltas:
                    yield delta.text


class ServerPartner:
    """A model of a server that runs already, Caudal's or Ollama's: asked by the latter's API.

    Args:
        base: Where the server is.
        api_key: Its key, where it has one.
        model: The model's name there.
        temperature: See `LocalPartner`.

    Raises:
        ServerError: The server can't be asked, or hasn't this model.
    """

    def __init__(
        self, base: str, api_key: str | None, model: str, temperature: float | None
    ) -> None:
        from caudal.cli.server_client import ask_server, headers_of

        self._base = base
        self._headers = headers_of(api_key)
        self._model = model
        self._options = {} if temperature is None else {"temperature": temperature}
        shown = ask_server(base, api_key, "POST", "/api/show", {"model": model}, has="model_info")
        self._is_plain = not shown.get("template")

    @property
    def is_plain(self) -> bool:
        """See `Partner`."""
        return self._is_plain

    async def answer(
        self, conversation: Conversation
    ) -> AsyncGenerator[ChatEvent | NoEffect, None]:
        """See `Partner`."""
        from caudal.chat.events import ContentDelta, ReasoningDelta

        messages = []
        for each in conversation.messages:
            message = {"role": each.role, "content": each.content}
            messages.append(message | ({"thinking": each.reasoning} if each.reasoning else {}))
        body: dict[str, Any] = {"messages": messages}
        if conversation.reasoning_effort is not None:
            body["think"] = _THINK[conversation.reasoning_effort]
        async with contextlib.aclosing(self._lines("/api/chat", body)) as lines:
            async for line in lines:
                message = line.get("message", {})
                if message.get("thinking"):
                    yield ReasoningDelta(message["thinking"])
                if message.get("content"):
                    yield ContentDelta(message["content"])

    async def go_on(self, text: str) -> AsyncGenerator[str, None]:
        """See `Partner`."""
        body = {"prompt": text, "raw": True}
        options = {"num_predict": PLAIN_MAX_TOKENS}
        async with contextlib.aclosing(self._lines("/api/generate", body, **options)) as lines:
            async for line in lines:
                yield line.get("response", "")

    async def _lines(
        self, path: str, body: dict[str, Any], **options: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        import httpx2

        from caudal.cli.server_client import ServerError, refusal

        body = {"model": self._model, "options": {**self._options, **options}, **body}
        try:
            async with (
                httpx2.AsyncClient(timeout=None) as client,
                client.stream(
                    "POST", self._base + path, json=body, headers=self._headers
                ) as response,
            ):
                if response.status_code >= 400:
                    raise refusal(self._base + path, response.status_code, await response.aread())
                async for text in response.aiter_lines():
                    line = json.loads(text) if text.strip() else {}
                    if "error" in line:
                        raise ServerError(str(line["error"]))
                    yield line
        except httpx2.HTTPError as error:
            raise ServerError(f"{self._base} can't be asked any more: {error}") from error
        except ValueError as error:
            raise ServerError(f"{self._base} answers what can't be read: {error}") from error
