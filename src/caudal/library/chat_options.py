"""What chats can be asked for, and a conversation as it was understood."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from caudal.chat.conversation import Conversation, ReasoningEffort
from caudal.service.naming import FieldNames


class ChatOptions(TypedDict, total=False):
    """How conversations are answered; what is None or not there asks for nothing.

    Attributes:
        chat_template: A template, Jinja's or Go's, to use instead of the model's.
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


def warn_of_no_effect(fields: Iterable[str]) -> None:
    """Say of fields that they made no difference; Python's filters decide how often."""
    for field in dict.fromkeys(fields):
        warnings.warn(f"{field} has no effect on this model.", NoEffectWarning, stacklevel=3)
