"""A model whose conversations are normalised before it sees them; see `prompt_presets.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from caudal.chat.conversation import Conversation
from caudal.chat.prompt_presets import normalised
from caudal.service.answers import ConversationSize, TokenForm, Tokens
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.forwarding import ForwardingService
from caudal.service.service import RunningChat, Service
from caudal.service.work import ChatWork
from caudal.structured_outputs import StructuredOutputsParams


class NormalisingService(ForwardingService):
    """Normalises conversations, whatever is asked of them, for one request.

    Args:
        target: The model.
        presets: Names of `PRESETS`.
        on_done: Told what was done to a conversation, before it is asked about.
    """

    def __init__(
        self, target: Service, presets: Collection[str], on_done: Callable[[Sequence[str]], None]
    ) -> None:
        self._target = target
        self._presets = presets
        self._on_done = on_done

    @property
    def target(self) -> Service:
        """The model."""
        return self._target

    def _normalised(self, conversation: Conversation) -> Conversation:
        conversation, done = normalised(conversation, self._presets)
        if done:
            self._on_done(done)
        return conversation

    async def chat(self, work: ChatWork, context: RequestContext = NO_CONTEXT) -> RunningChat:
        """See `Service`."""
        work = replace(work, conversation=self._normalised(work.conversation))
        return await self._target.chat(work, context)

    async def tokenize_chat(
        self,
        conversation: Conversation,
        *,
        add_special: bool = False,
        show: TokenForm | None = None,
    ) -> Tokens:
        """See `Service`."""
        conversation = self._normalised(conversation)
        return await self._target.tokenize_chat(conversation, add_special=add_special, show=show)

    async def measure(
        self, conversation: Conversation, form: StructuredOutputsParams | None = None
    ) -> ConversationSize:
        """See `Service`."""
        return await self._target.measure(self._normalised(conversation), form)

    async def render(self, conversation: Conversation) -> str:
        """See `Service`."""
        return await self._target.render(self._normalised(conversation))
