"""From a request to its prompt, as the model's chat template takes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from fastapi import Request

from caudal.chat.conversation import Conversation
from caudal.chat.prompt import ChatPrompt
from caudal.errors import TemplateError
from caudal.server.anthropic.content import MessageObject
from caudal.server.anthropic.context_edits import Edited, apply_edits
from caudal.server.anthropic.schema import FIELD_NAMES, CountTokensRequest
from caudal.server.anthropic.turns import without_late_system_messages
from caudal.server.errors import UnknownModelError
from caudal.server.ignored import note_ignored
from caudal.service.served_model import ServedModel

T = TypeVar("T")

CLAUDE = "claude-"
"""Names of Anthropic's models begin so. Clients have them built in, and mean whatever is served."""


class PromptMaker:
    """Makes the prompt of one request, and says what of it has no effect.

    Args:
        body: The request's.
        model: The one that answers.
        request: Carries what is said.
    """

    def __init__(self, body: CountTokensRequest, model: ServedModel, request: Request) -> None:
        self._body = body
        self._model = model
        self._request = request

    @property
    def _is_strict(self) -> bool:
        strict: bool = self._request.app.state.strict_fields
        return strict

    def name(self) -> str:
        """The name of the model that answers.

        Raises:
            UnknownModelError: The request names another that can't be meant.
        """
        asked = self._body.model
        try:
            return self._model.name_for(asked)
        except UnknownModelError:
            if asked is None or not asked.startswith(CLAUDE) or self._is_strict:
                raise
        note_ignored(self._request, ["model"])
        return self._model.names[0]

    def note_fields(self) -> None:
        """Say which fields do nothing here."""
        can_think = self._model.chat.dialect.reasoning_parser != "none"
        note_ignored(self._request, self._body.without_effect(can_think=can_think))

    def note(self, fields: Sequence[str]) -> None:
        """Say which fields, as the chat API calls them, this model can't do anything with."""
        names = FIELD_NAMES
        if self._body.thinks is False:  # which is asked for as the lowest effort
            names = {**FIELD_NAMES, "reasoning_effort": "thinking"}
        note_ignored(self._request, [names.get(field, field) for field in fields])

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

        async def prepare(conversation: Conversation) -> ChatPrompt:
            return await self._model.prepare_chat(conversation, self._body.form)

        prompt = await self.run(messages, prepare)
        self.note(prompt.ignored)
        return len(prompt.tokens)

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
        conversation = self._body.conversation(self._model.chat.template, messages)
        try:
            return await use(conversation)
        except TemplateError:
            folded = without_late_system_messages(conversation.messages)
            if folded is None or self._is_strict:
                raise
        note_ignored(self._request, ["messages[].role"])
        return await use(replace(conversation, messages=folded))
