"""From a request to its prompt, as the model's chat template takes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from caudal.chat.conversation import Conversation
from caudal.errors import TemplateError
from caudal.server.anthropic.content import MessageObject
from caudal.server.anthropic.context_edits import Edited, apply_edits
from caudal.server.anthropic.schema import CountTokensRequest
from caudal.server.anthropic.turns import without_late_system_messages
from caudal.server.asked import Asked
from caudal.service.answers import ConversationSize

T = TypeVar("T")


class PromptMaker:
    """Makes the prompt of one request, and says what of it has no effect.

    Args:
        asked: The request.
    """

    def __init__(self, asked: Asked[Any]) -> None:
        self._asked = asked
        self._body: CountTokensRequest = asked.body
        self._model = asked.model

    def note_fields(self) -> None:
        """Say which fields do nothing here."""
        can_think = self._model.info.template.can_think
        self._asked.note_ignored(self._body.without_effect(can_think=can_think))

    async def edit(self) -> Edited:
        """The messages that the model gets to see; raises what `count` raises."""
        management = self._body.context_management
        edits = None if management is None else management.edits
        return await apply_edits(edits or (), self._body.messages, self.count)

    async def count(self, messages: Sequence[MessageObject]) -> int:
        """How many tokens the prompt has with these messages instead of the request's.

        Raises:
            TemplateError: The template refuses the messages, in its own words.
            ParameterError: Something in the request makes no sense.
        """

        async def measure(conversation: Conversation) -> ConversationSize:
            return await self._model.measure(conversation, self._body.form)

        size = await self.run(messages, measure)
        self._asked.note_ignored(size.ignored)
        return size.tokens

    async def run(
        self,
        messages: Sequence[MessageObject],
        use: Callable[[Conversation], Awaitable[T]],
    ) -> T:
        """Use the conversation. Where its template refuses it, the user says what systems said.

        Raises:
            TemplateError: It refuses that too.
            ParameterError: Something in the request makes no sense.
        """
        conversation = self._body.conversation(self._model.info.template, messages)
        try:
            return await use(conversation)
        except TemplateError:
            folded = without_late_system_messages(conversation.messages)
            if folded is None or self._asked.is_strict:
                raise
        self._asked.note_ignored(["messages[].role"])
        return await use(replace(conversation, messages=folded))
