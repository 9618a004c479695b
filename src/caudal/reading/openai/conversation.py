"""What decides how a conversation becomes a prompt, and who may answer it how."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from caudal.chat.conversation import Conversation
from caudal.errors import ParameterError
from caudal.reading.openai.chat_tools import (
    NamedTool,
    ToolChoiceField,
    ToolObject,
    read_tool_choice,
    read_tools,
)
from caudal.reading.openai.messages import ChatMessage
from caudal.reading.openai.thinking import ThinkingFields


class ConversationFields(ThinkingFields):
    """Fields that decide how a conversation becomes a prompt."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[ToolObject] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = Field(None, description="A template instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = None

    def without_effect(self) -> list[str]:
        """What does nothing here, beside what never does: parts of messages that the model can't
        read and that were replaced by words, and places for reasoning that there are not.
        """
        kinds = {part.kind for message in self.messages for _, part in message.unreadable_parts}
        formats = [] if self.has_reasoning_format else ["reasoning_format"]
        return [f"messages[].content[{kind}]" for kind in sorted(kinds)] + formats

    def _check_parts(self) -> None:
        """A tool's output may have parts that the model can't read; who asks must know better."""
        for index, message in enumerate(self.messages):
            for place, part in message.unreadable_parts:
                if message.role != "tool":
                    where = f"messages[{index}].content[{place}]"
                    raise ParameterError(
                        where, f"{where}: this model reads text only, no part of type {part.type}."
                    )

    def conversation(self) -> Conversation:
        """The request in the shape that all APIs share.

        Raises:
            ParameterError: Names the offending field.
        """
        self._check_parts()
        tools = read_tools(self.tools or ())
        continue_final = bool(self.continue_final_message)
        add_prompt = self.add_generation_prompt
        # Who names a tool means one call of it.
        single = self.parallel_tool_calls is False or isinstance(self.tool_choice, NamedTool)
        return Conversation(
            messages=[message.message() for message in self.messages],
            tools=tools,
            tool_choice=read_tool_choice(self.tool_choice, tools),
            parallel_tool_calls=not single,
            add_generation_prompt=not continue_final if add_prompt is None else add_prompt,
            continue_final_message=continue_final,
            reasoning_effort=self.effort,
            include_reasoning=self.shows_reasoning,
            template=self.chat_template,
            template_kwargs=self.chat_template_kwargs or {},
        )


def tool_field(index: int, part: str) -> str:
    """Where a tool's `parameters`, or its `format`, are."""
    return f"tools[{index}].{'function' if part == 'parameters' else 'custom'}.{part}"
