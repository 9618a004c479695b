"""What a client asks of a chat model, in the one shape that all APIs are converted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from caudal.chat.text_input import TextInput

Role = Literal["system", "developer", "user", "assistant", "tool"]

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an assistant made.

    Attributes:
        id: Names the call, for its result to refer to.
        name: The tool.
        arguments: A JSON object, as text; whatever the model wrote where a client sends it back. In
            an answer's call of a custom tool, its text.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message.

    Attributes:
        role: Who speaks. `developer` is OpenAI's newer name for `system`.
        content: Text, or the texts of its parts; None only for an assistant that called tools.
        name: Of the speaker; for a tool's result, of the tool, where the API says so.
        reasoning: What an assistant thought before it answered.
        tool_calls: What an assistant called.
        tool_call_id: The call whose result a tool's message is.
    """

    role: Role
    content: str | Sequence[str] | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function, or a custom tool, that the model may call.

    Attributes:
        name: Letters, digits, underscores, dashes; at most 128.
        description: What it does, for the model.
        parameters: JSON schema of its arguments, of type object.
        strict: Whether arguments must validate against `parameters` even where the model is free
            to call or not.
        text_input: What a custom tool takes; None for a function.
        checked: Whether a grammar for this tool's calls holds them to `parameters`, and not just to
            any object.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    strict: bool = False
    text_input: TextInput | None = None
    checked: bool = True

    @property
    def grammar(self) -> str | None:
        """The grammar of the text that a custom tool takes, where it has one."""
        return None if self.text_input is None else self.text_input.grammar

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schemas of its arguments by name, where `parameters` lists any.

        Those that are nothing but a reference into `parameters` are what that refers to.
        """
        properties = self.parameters.get("properties")
        if not isinstance(properties, Mapping):
            return {}
        return {key: _resolved(schema, self.parameters) for key, schema in properties.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether tools are called, and which.

    Attributes:
        mode: `auto`: the model decides; `required`: it must call; `none`: it must not.
        names: The only tools it may call; None for all. With `required` and one name, that tool.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A request for the next message.

    Attributes:
        messages: What was said, oldest first; at least one.
        tools: What the model may call.
        tool_choice: Whether it calls.
        parallel_tool_calls: Whether one answer may have several calls.
        add_generation_prompt: End the prompt with what begins an assistant's message.
        continue_final_message: Let the model go on with the last message, the assistant's, instead.
        reasoning_effort: How much the model should think; None leaves it to the template.
        include_reasoning: Whether reasoning is reported; it is told apart from content either way.
        template: A template, Jinja's or Go's, to use instead of the model's.
        template_kwargs: Further variables for the template, e.g. `enable_thinking`.
        opens: Whether it begins as all of the model's do; not where it goes on from an earlier one.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool = True
    template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    opens: bool = True

    @property
    def num_characters(self) -> int:
        """Length of the texts in messages and tools, about."""
        count = 0
        for message in self.messages:
            content = message.content or ""
            count += len(content) if isinstance(content, str) else sum(map(len, content))
            count += len(message.reasoning or "")
            count += sum(len(call.arguments) for call in message.tool_calls)
        return count + sum(len(tool.description or "") for tool in self.tools)

    @property
    def offered_tools(self) -> Sequence[Tool]:
        """The tools that this answer may call: none, all, or those that the choice names."""
        if self.tool_choice.mode == "none":
            return ()
        names = self.tool_choice.names
        return [tool for tool in self.tools if names is None or tool.name in names]


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a schema refers to, by a path from the root such as `#/$defs/Unit`."""
    for _ in range(8):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        schema = found
    return schema
