"""Conversations as the library takes them: in OpenAI's form, read as over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from caudal.errors import ParameterError
from caudal.library.chat_options import ChatOptions, ReadConversation
from caudal.library.prompts import Message, as_conversations
from caudal.reading.explain import explain_errors
from caudal.reading.fields import FieldReading, ignored_fields
from caudal.reading.openai.conversation import ConversationFields, tool_field
from caudal.service.naming import FieldNames, renamed

MAX_DEPTH = 256
"""Most levels of objects and lists in each other, as over HTTP."""


def read_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]], options: ChatOptions
) -> list[ReadConversation]:
    """Read one conversation or several.

    Args:
        messages: See `LLM.chat`.
        options: How all of them are answered.

    Raises:
        TypeError: There is no such option.
        ParameterError: Something in them makes no sense, or isn't supported.
    """
    if unknown := options.keys() - ChatOptions.__annotations__.keys():
        raise TypeError(f"chats have no option {min(unknown)!r}")
    given = {name: _as_json(value, name) for name, value in options.items() if value is not None}
    if given.get("continue_final_message"):
        given["add_generation_prompt"] = False
    conversations = as_conversations(messages)
    is_one = conversations is not messages
    return [
        _read(each, given, "messages" if is_one else f"messages[{index}]")
        for index, each in enumerate(conversations)
    ]


def _read(messages: Sequence[Message], given: Mapping[str, Any], where: str) -> ReadConversation:
    names = FieldNames({"prompt": where, "messages": where}, tool_field)
    reading = FieldReading()
    try:
        fields = ConversationFields.model_validate(
            {"messages": _as_json(messages, "messages"), **given}, context=reading
        )
        conversation = fields.conversation()
    except ValidationError as error:
        message, field = explain_errors(error.errors(include_url=False), by="Caudal")
        raise renamed(ParameterError(field or "messages", message), names) from None
    except ParameterError as error:
        raise renamed(error, names) from None
    ignored = fields.without_effect()
    if reading.found_ignored:
        ignored += ignored_fields(fields)
    return ReadConversation(conversation, fields.thinking_budget, names, ignored)


def _as_json(value: Any, field: str, levels: int = MAX_DEPTH) -> Any:
    """A value with Python's mappings and tuples as JSON's objects and lists.

    Raises:
        ParameterError: It is nested too deeply, or contains itself; blames `field`.
    """
    if not isinstance(value, Mapping | list | tuple):
        return value
    if levels == 0:
        raise ParameterError(field, f"{field} has more than {MAX_DEPTH} levels.")
    if isinstance(value, Mapping):
        return {key: _as_json(each, field, levels - 1) for key, each in value.items()}
    return [_as_json(each, field, levels - 1) for each in value]
