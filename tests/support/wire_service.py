"""A model's service as if it were in another process: all that passes its door travels as bytes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from caudal.chat.conversation import Conversation
from caudal.engine.stats import EngineStats
from caudal.engine.wire import ErrorData, pack, unpack
from caudal.errors import CaudalError
from caudal.service.answers import (
    ChatDelta,
    CompleteAnswer,
    ConversationSize,
    Delta,
    Embedding,
    OutputToken,
    PairScore,
    SubmittedPrompt,
    TokenForm,
    Tokens,
    Usage,
)
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.info import ServiceInfo
from caudal.service.model_service import ModelService
from caudal.service.service import RunningAnswer, RunningChat, RunningText, Service
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork
from caudal.structured_outputs import StructuredOutputsParams

T = TypeVar("T")
D = TypeVar("D")


def sent(value: Any, kind: Any) -> Any:
    """What arrives of a value on the other side, where it is taken for what is declared."""
    return unpack(pack(value), kind)


@contextlib.contextmanager
def errors_sent() -> Iterator[None]:
    """Errors arrive as others that are made of their data."""
    try:
        yield
    except CaudalError as error:
        raise sent(ErrorData.of(error), ErrorData).error() from None


class Progress(msgspec.Struct, Generic[D]):
    """What an iteration brings. The prompt's tokens come with the first."""

    deltas: list[D]
    usage: Usage
    prompt_tokens: list[OutputToken] | None


class SentAnswer(Generic[D]):
    """A running answer that knows only what has arrived."""

    delta: Any

    def __init__(self, running: Any) -> None:
        self._running = running
        self.prompt: SubmittedPrompt = sent(running.prompt, SubmittedPrompt)
        self.usage: Usage = sent(running.usage, Usage)
        self.prompt_tokens: Sequence[OutputToken] = ()

    async def deltas(self) -> AsyncGenerator[list[D], None]:
        first = True
        with errors_sent():
            try:
                async with contextlib.aclosing(self._running.deltas()) as stream:
                    async for deltas in stream:
                        tokens = list(self._running.prompt_tokens) if first else None
                        progress = Progress(deltas, self._running.usage, tokens)
                        progress = sent(progress, Progress[self.delta])
                        self.usage = progress.usage
                        if first:
                            self.prompt_tokens = progress.prompt_tokens or ()
                        first = False
                        yield progress.deltas
            finally:
                self._take_usage()

    async def aclose(self) -> None:
        await self._running.aclose()
        self._take_usage()

    def _take_usage(self) -> None:
        """The last figures come with the end, whatever ends it."""
        self.usage = sent(self._running.usage, Usage)


class SentText(SentAnswer[Delta]):
    delta = Delta


class SentChat(SentAnswer[ChatDelta]):
    delta = ChatDelta

    def __init__(self, running: RunningChat) -> None:
        super().__init__(running)
        self.ignored = sent(running.ignored, list[str])

    async def collect(self) -> list[CompleteAnswer]:
        with errors_sent():
            answers = await self._running.collect()
        self._take_usage()
        self.prompt_tokens = sent(self._running.prompt_tokens, list[OutputToken])
        return sent(answers, list[CompleteAnswer])


class WireService(Service):
    """Offers what the service behind it does.

    Attributes:
        behind: It.
    """

    def __init__(self, behind: ModelService) -> None:
        self.behind = behind
        self._info = sent(behind.info, ServiceInfo)

    @property
    def info(self) -> ServiceInfo:
        return self._info

    @property
    def healthy(self) -> bool:
        return sent(self.behind.healthy, bool)

    async def stats(self) -> EngineStats:
        return sent(await self.behind.stats(), EngineStats)

    async def metrics(self) -> bytes:
        return sent(await self.behind.metrics(), bytes)

    async def chat(self, work: ChatWork, context: RequestContext = NO_CONTEXT) -> RunningChat:
        with errors_sent():
            running = await self.behind.chat(sent(work, ChatWork), sent(context, RequestContext))
        return SentChat(running)

    async def complete(
        self, work: CompletionWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[RunningText]:
        with errors_sent():
            started: Sequence[RunningAnswer] = await self.behind.complete(
                sent(work, CompletionWork), sent(context, RequestContext)
            )
        return list(map(SentText, started))

    async def embed(
        self, work: EmbedWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[Embedding]:
        with errors_sent():
            found = await self.behind.embed(sent(work, EmbedWork), sent(context, RequestContext))
        return sent(found, list[Embedding])

    async def score(
        self, work: ScoreWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[PairScore]:
        with errors_sent():
            found = await self.behind.score(sent(work, ScoreWork), sent(context, RequestContext))
        return sent(found, list[PairScore])

    async def tokenize(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        with errors_sent():
            tokens = await self.behind.tokenize(
                sent(text, str), add_special=add_special, parse_special=parse_special, show=show
            )
        return sent(tokens, Tokens)

    async def tokenize_chat(
        self,
        conversation: Conversation,
        *,
        add_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        with errors_sent():
            tokens = await self.behind.tokenize_chat(
                sent(conversation, Conversation), add_special=add_special, show=show
            )
        return sent(tokens, Tokens)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        with errors_sent():
            text = await self.behind.detokenize(sent(tokens, list[int]))
        return sent(text, str)

    async def measure(
        self, conversation: Conversation, form: StructuredOutputsParams | None = None
    ) -> ConversationSize:
        with errors_sent():
            size = await self.behind.measure(
                sent(conversation, Conversation), sent(form, StructuredOutputsParams | None)
            )
        return sent(size, ConversationSize)

    async def render(self, conversation: Conversation) -> str:
        with errors_sent():
            text = await self.behind.render(sent(conversation, Conversation))
        return sent(text, str)

    async def shutdown(self) -> None:
        await self.behind.shutdown()
