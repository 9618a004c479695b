"""What an application keeps for the responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import Request

from caudal.errors import ParameterError
from caudal.server.openai.conversation_store import Conversation, ConversationStore
from caudal.server.openai.reasoning_seal import ReasoningSeal
from caudal.server.openai.responses_background import BackgroundRuns
from caudal.server.openai.responses_items import AnyItem, ItemReference, read_stored
from caudal.server.openai.responses_schema import InputFields
from caudal.server.openai.responses_store import ResponseStore
from caudal.server.openai.unknown import UnknownResponseError
from caudal.server.tenancy import tenant_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesState:
    """What an application keeps for the responses API.

    Attributes:
        seal: What seals and opens reasoning that clients keep.
        responses: Responses that later ones may go on from.
        conversations: Conversations that responses may belong to.
        runs: What runs in the background, or ran there lately.
    """

    seal: ReasoningSeal
    responses: ResponseStore = field(default_factory=ResponseStore)
    conversations: ConversationStore = field(default_factory=ConversationStore)
    runs: BackgroundRuns = field(default_factory=BackgroundRuns)

    def of(self, owner: str) -> ResponsesState:
        """The same, as one tenant sees it: with what is its own."""
        return replace(
            self,
            responses=self.responses.of(owner),
            conversations=self.conversations.of(owner),
            runs=self.runs.of(owner),
        )

    def conversation_of(self, body: InputFields) -> Conversation | None:
        """The conversation that a request belongs to.

        Raises:
            ParameterError: It goes on from a response, too.
            UnknownConversationError: There is no such conversation.
        """
        if body.conversation_id is None:
            return None
        if body.previous_response_id is not None:
            raise ParameterError(
                "conversation", "conversation and previous_response_id exclude each other."
            )
        return self.conversations.get(body.conversation_id)

    def items_before(self, body: InputFields) -> Sequence[Mapping[str, Any]]:
        """What the response was given and gave that a request goes on from.

        Raises:
            ParameterError: There is no such response; here the request is at fault.
        """
        identity = body.previous_response_id
        if identity is None:
            return ()
        try:
            return self.responses.get(identity).conversation
        except UnknownResponseError as error:
            raise ParameterError(
                "previous_response_id", f"previous_response_id: {error}"
            ) from error

    def resolved(self, items: Sequence[AnyItem]) -> Sequence[AnyItem]:
        """A request's items, with those that it refers to in place of the references.

        Raises:
            UnknownItemError: There is no such item.
        """
        named = [item.id for item in items if isinstance(item, ItemReference)]
        if not named:
            return items
        found = self.responses.find_items(named)
        kept = iter(read_stored([found[identity] for identity in named]))
        return [next(kept) if isinstance(item, ItemReference) else item for item in items]


def responses_state(request: Request) -> ResponsesState:
    """What this application keeps for who asks."""
    state: ResponsesState = request.app.state.responses
    return state.of(tenant_of(request.scope).id)
