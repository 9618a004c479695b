"""What is left of a conversation that has no room, where a request wants it cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caudal.chat.conversation import Conversation
from caudal.errors import ContextOverflowError, TemplateError
from caudal.service.service import Service


async def fitted(model: Service, conversation: Conversation, room: int) -> Conversation:
    """The conversation without its first messages, as many of them as have to go.

    As at Ollama, system messages and the last message stay, whether that has room or not. Turns go
    as a whole, for many templates want one of the user's first; where the last turn is too long by
    itself, its first calls go with their results.

    Args:
        model: Whose template and tokens count.
        conversation: The conversation.
        room: Most tokens of its prompt.

    Raises:
        TemplateError, ParameterError: See `Service.chat`; of the whole conversation.
    """
    if await _fits(model, conversation, room):
        return conversation
    messages = conversation.messages
    last = len(messages) - 1
    turns = [place for place in range(1, last + 1) if messages[place].role == "user"]
    latest = turns[-1] if turns else 0
    steps = [place for place in range(latest + 1, last) if messages[place].role == "assistant"]
    for begins in (turns, steps):
        cut = await _first_fitting(model, conversation, room, begins)
        if cut is not None:
            return cut
    return _from(conversation, last)


async def _first_fitting(
    model: Service, conversation: Conversation, room: int, begins: Sequence[int]
) -> Conversation | None:
    """The conversation from the first of these places from which it has room, if there is one."""
    found = None
    low, high = 0, len(begins)
    while low < high:  # what is cut more never has more tokens
        middle = (low + high) // 2
        cut = _from(conversation, begins[middle])
        try:
            fits = await _fits(model, cut, room)
        except TemplateError:  # it can't be told from there
            fits = False
        if fits:
            found, high = cut, middle
        else:
            low = middle + 1
    return found


def _from(conversation: Conversation, begin: int) -> Conversation:
    """The conversation without the messages before a place, but for the system's."""
    kept = [message for message in conversation.messages[:begin] if message.role == "system"]
    return replace(conversation, messages=[*kept, *conversation.messages[begin:]])


async def _fits(model: Service, conversation: Conversation, room: int) -> bool:
    try:
        return (await model.measure(conversation)).tokens <= room
    except ContextOverflowError:
        return False
