"""Conversations as the library takes them: in OpenAI's form, read as over HTTP."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from pydantic import ValidationError

from caudal.chat.conversation import Conversation, ReasoningEffort
from caudal.errors import ParameterError
from caudal.library.prompts import Message, as_conversations
from caudal.reading.explain import explain_errors
from caudal.reading.fields import FieldReading, ignored_fields
from caudal.reading.openai.conversation import ConversationFields, tool_field
from caudal.service.naming import FieldNames, renamed


class ChatOptions(TypedDict, total=False):
    """How conversations are answered; what is None or not there asks for nothing.

    Attributes:
        chat_template: A Jinja template to use instead of the model's.
        add_generation_prompt: Begin an answer after the last message, which is the default.
        continue_final_message: Continue the last message instead.
        tools: What the model may call, in the form of OpenAI's chat API.
        tool_choice: "auto", "none", "required", or which tool, in that form too.
        parallel_tool_calls: Whether one answer may have several calls, which is the default.
        chat_template_kwargs: Further variables for the template.
        reasoning_effort: How much the model is to think, where its template has levels or a switch.
        thinking_token_budget: Most tokens that the model may think for, then its thinking is ended;
            -1 for no limit.
    """

    chat_template: str | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    reasoning_effort: ReasoningEffort | None
    thinking_token_budget: int | None


class NoEffectWarning(UserWarning):
    """Something was asked for that makes no difference to this model."""


@dataclass(frozen=True, slots=True)
class ReadConversation:
    """A conversation to answer.

    Attributes:
        conversation: The conversation.
        thinking_budget: Most tokens that the model may think for; None for no limit.
        names: What the library calls the fields that errors blame.
        ignored: What of it has no effect on any model.
    """

    conversation: Conversation
    thinking_budget: int | None
    names: FieldNames
    ignored: Sequence[str]

    @property
    def custom_tools(self) -> frozenset[str]:
        """The names of tools that take text."""
        tools = self.conversation.tools
        return frozenset(tool.name for tool in tools if tool.text_input is not None)


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
    given = {name: _as_json(value) for name, value in options.items() if value is not None}
    if given.get("continue_final_message"):
        given["add_generation_prompt"] = False
    conversations = as_conversations(messages)
    is_one = conversations is not messages
    return [
        _read(each, given, "messages" if is_one else f"messages[{index}]")
        for index, each in enumerate(conversations)
    ]


def warn_of_no_effect(fields: Iterable[str]) -> None:
    """Say of fields that they made no difference; Python's filters decide how often."""
    for field in dict.fromkeys(fields):
        warnings.warn(f"{field} has no effect on this model.", NoEffectWarning, stacklevel=3)


def _read(messages: Sequence[Message], given: Mapping[str, Any], where: str) -> ReadConversation:
    names = FieldNames({"prompt": where, "messages": where}, tool_field)
    reading = FieldReading()
    try:
        fields = ConversationFields.model_validate(
            {"messages": _as_json(messages), **given}, context=reading
        )
        conversation = fields.conversation()
    except ValidationError as error:
        message, field = explain_errors(error.errors(include_url=False))
        raise renamed(ParameterError(field or "messages", message), names) from None
    except ParameterError as error:
        raise renamed(error, names) from None
    ignored = fields.without_effect()
    if reading.found_ignored:
        ignored += ignored_fields(fields)
    return ReadConversation(conversation, fields.thinking_budget, names, ignored)


def _as_json(value: Any) -> Any:
    """A value with Python's mappings and tuples as JSON's objects and lists."""
    if isinstance(value, Mapping):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return value
