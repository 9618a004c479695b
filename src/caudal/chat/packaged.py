"""What a model's package puts into conversations: a system prompt, and messages before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from caudal.chat.conversation import Conversation, Message

_INSTRUCTS = ("system", "developer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a model's conversations begin.

    Attributes:
        system: What it is told where a conversation has no system message.
        messages: What was said before all that a conversation has.
    """

    system: str | None = None
    messages: Sequence[Message] = ()

    def of(self, conversation: Conversation, *, takes_system: Callable[[], bool]) -> Conversation:
        """A conversation that begins so.

        What it tells the model at its beginning stays there: templates want that first.

        Args:
            conversation: The conversation.
            takes_system: Says whether the template has a place for system messages; where it
                hasn't, what the model is to be told stands before what it is asked first.
        """
        if not conversation.opens or (not self.messages and self.system is None):
            return conversation
        said = conversation.messages
        told = next((i for i, each in enumerate(said) if each.role not in _INSTRUCTS), len(said))
        messages = [*said[:told], *self.messages, *said[told:]]
        if self.system is not None and not any(each.role in _INSTRUCTS for each in said):
            asked = next((i for i, each in enumerate(messages) if each.role == "user"), None)
            if asked is None or takes_system():
                messages = [Message(role="system", content=self.system), *messages]
            else:
                messages[asked] = _begun_with(self.system, messages[asked])
        return replace(conversation, messages=messages)


def _begun_with(text: str, message: Message) -> Message:
    content = message.content or ""
    if isinstance(content, str):
        return replace(message, content=f"{text}\n\n{content}")
    return replace(message, content=[f"{text}\n\n", *content])


NO_OPENING = Opening()
"""Of a model whose conversations begin as they are."""
