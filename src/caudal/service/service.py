"""The door to a model, as those see it who ask: whichever process the model is in.

Plain data goes in (`caudal.service.work`, `caudal.service.context`) and comes out
(`caudal.service.answers`, `caudal.service.info`), and errors are `CaudalError`s: all that
`caudal.engine.wire` can carry.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Protocol

from caudal.chat.conversation import Conversation
from caudal.engine.stats import EngineStats
from caudal.engine.tiers.figures import PrefixCacheFigures, PrefixCacheReset, SpaceChoice
from caudal.errors import UnsupportedTaskError
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
from caudal.service.facts import ServedFacts
from caudal.service.info import AdapterInfo, ServiceInfo
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork
from caudal.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from caudal.models.program import Task


class RunningAnswer(Protocol):
    """An answer that is being generated.

    What it tells of itself is as of the latest deltas that were read, and doesn't wait.
    """

    @property
    def prompt(self) -> SubmittedPrompt:
        """The prompt, as the model gets it."""

    @property
    def prompt_tokens(self) -> Sequence[OutputToken]:
        """The prompt's tokens with their scores, where asked for; known with the first delta.

        The first follows nothing and has none. Places are in the text without control tokens.
        """

    @property
    def usage(self) -> Usage:
        """The request's figures."""

    async def aclose(self) -> None:
        """Give up what still runs. Safe to call twice."""


class RunningText(RunningAnswer, Protocol):
    """A continued prompt."""

    def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """Yield the deltas of each iteration, never an empty list. Use it once, and close it.

        Raises:
            RequestTimeoutError: A deadline passed.
            RequestFailedError: The executor failed.
            EngineDeadError: The engine stopped first.
        """


class RunningChat(RunningAnswer, Protocol):
    """An answered conversation."""

    @property
    def ignored(self) -> Sequence[str]:
        """What was asked for that has no effect on this model, named as in OpenAI's API."""

    def deltas(self) -> AsyncGenerator[list[ChatDelta], None]:
        """Yield what is new after each iteration; see `RunningText.deltas`."""

    async def collect(self) -> list[CompleteAnswer]:
        """The whole answers, one per sequence. Use this or `deltas`; raises the same."""


class Service(Protocol):
    """What a model does, whoever asks."""

    # What it is

    @property
    def info(self) -> ServiceInfo:
        """What it says of itself, once and for all."""

    @property
    def healthy(self) -> bool:
        """Whether it takes and serves requests."""

    @property
    def names(self) -> Sequence[str]:
        """Names that requests may use; its own first."""
        return self.info.names

    @property
    def adapters(self) -> Sequence[AdapterInfo]:
        """The adapters that requests may name, in the order of loading. Never waits."""

    @property
    def facts(self) -> ServedFacts:
        """What was loaded and what runs it."""
        return self.info.facts

    @property
    def tasks(self) -> frozenset[Task]:
        """What may be asked of the model."""
        return self.facts.loaded.tasks

    @property
    def max_model_len(self) -> int:
        """Most tokens of one sequence, prompt and answer together."""
        return self.facts.loaded.max_model_len

    @property
    def has_chat_template(self) -> bool:
        """Whether the model came with a chat format; a base model has none of its own."""
        return not self.info.template.is_default

    def check_task(self, task: Task) -> None:
        """Raises `UnsupportedTaskError` where the model can't do what is asked."""
        if task not in self.tasks:
            raise UnsupportedTaskError(self.names[0], task, sorted(self.tasks))

    async def stats(self) -> EngineStats:
        """What it does now, and has done."""

    async def metrics(self) -> bytes:
        """Figures, as the text that Prometheus expects."""

    # What it does

    async def chat(self, work: ChatWork, context: RequestContext = NO_CONTEXT) -> RunningChat:
        """Answer a conversation. Close what is returned.

        Raises:
            TemplateError: The template refuses the messages, in its own words.
            ParameterError: Something in the conversation or the parameters makes no sense, or can't
                be had of this model.
            QueueFullError: Too many requests are waiting.
            RequestTimeoutError: Time ran out before it could be submitted.
            UnknownAdapterError: The context names an adapter that isn't there; so do the others.
        """

    async def complete(
        self, work: CompletionWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[RunningText]:
        """Continue prompts, one answer each. Close what is returned.

        Raises:
            ParameterError: A prompt or a parameter is refused; nothing runs then.
            QueueFullError: Too many requests are waiting.
            RequestTimeoutError: Time ran out before it could be submitted.
        """

    async def embed(
        self, work: EmbedWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[Embedding]:
        """Turn inputs into vectors, in order; if one fails, all do.

        Raises:
            ParameterError: An input or a parameter is refused; blames `input`, or `input[3]`.
            QueueFullError: Too many requests are waiting.
            RequestFailedError, RequestTimeoutError, EngineDeadError: It could not be computed.
        """

    async def score(
        self, work: ScoreWork, context: RequestContext = NO_CONTEXT
    ) -> Sequence[PairScore]:
        """Say how well texts belong together, pair by pair; raises what `embed` raises."""

    async def tokenize(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """The tokens of a text.

        Args:
            text: The text.
            add_special: Add what begins and ends texts.
            parse_special: Whether control tokens written in it are control tokens.
            show: A form of each token to show.

        Raises:
            ContextOverflowError: No context has room for it.
        """

    async def tokenize_chat(
        self,
        conversation: Conversation,
        *,
        add_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """The tokens that a conversation becomes; raises what `chat` raises.

        Args:
            conversation: The conversation.
            add_special: Add what begins and ends texts to what the template writes.
            show: A form of each token to show.
        """

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with the names of control tokens.

        Raises:
            ParameterError: There are too many, or an id doesn't exist; blames `tokens`.
        """

    async def measure(
        self, conversation: Conversation, form: StructuredOutputsParams | None = None
    ) -> ConversationSize:
        """What a conversation would take, without answering it; raises what `chat` raises.

        Args:
            conversation: The conversation.
            form: What the content of the answer would be held to.
        """

    async def render(self, conversation: Conversation) -> str:
        """A conversation's prompt as text; raises what `chat` raises."""

    # What it keeps

    async def prefix_cache(self) -> PrefixCacheFigures:
        """What its prefix cache holds and has done. Raises `EngineDeadError`."""

    async def reset_prefix_cache(self, choice: SpaceChoice) -> PrefixCacheReset:
        """Give up cached prefixes, but for what running requests use; raises likewise.

        Args:
            choice: Whose.
        """

    # What it may do it with

    async def load_adapter(
        self, name: str, path: str, *, replace: bool = False, room: int | None = None
    ) -> Sequence[AdapterInfo]:
        """Load an adapter while the model runs.

        Args:
            name: What requests will call it.
            path: Its file or folder, on the machine that the model is on.
            replace: It may take the place of one of the same name; requests that have come before
                are still answered with that one.
            room: Bytes that it may take; None for as many as it does.

        Returns:
            All that there are now.

        Raises:
            AdapterExistsError: The name is taken.
            AdapterNotFoundError: There is no such file.
            ModelLoadError: It can't be used with this model, or takes more than it may.
        """

    async def unload_adapter(self, name: str) -> Sequence[AdapterInfo]:
        """Take requests for an adapter no more; those that it has are answered, then it is gone.

        Returns:
            All that there are now.

        Raises:
            UnknownAdapterError: There is none of this name.
        """

    async def shutdown(self) -> None:
        """End what runs, and all threads and processes. Safe to call twice."""
