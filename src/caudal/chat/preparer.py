"""A model to talk to: conversations become prompts, and come with what reads their answers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

from caudal.chat.conversation import Conversation
from caudal.chat.dialect import Dialect, choose_dialect
from caudal.chat.effort import LEVELS, EffortWords, effort_words
from caudal.chat.packaged import NO_OPENING, Opening
from caudal.chat.prompt import AnswerPlan, ChatPrompt
from caudal.chat.template_habits import (
    TemplateHabits,
    learn_habits,
    takes_system,
    takes_tools,
    tools_in_messages,
)
from caudal.chat.template_messages import template_messages
from caudal.chat.tool_prompt import tool_object, with_tools_in_system
from caudal.chat.written_calls import written_format
from caudal.errors import ParameterError, TemplateError
from caudal.formats.chat_template import ChatTemplate, TemplateOptions
from caudal.formats.template_workers import TemplateProcesses, TemplateWorkers
from caudal.formats.tokenizer import Tokenizer
from caudal.structured_outputs import StructuredOutputsParams

MAX_TEMPLATE = 256 * 1024
"""Longest template that a request may bring."""

CACHED_TEMPLATES = 16


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a conversation asks of a template.

    Attributes:
        template: The model's, or the request's.
        dialect: How the answer will be written.
        messages: As the template takes them.
        hears_effort: Whether it listens to how much the model is to think.
        options: What else the template is told.
    """

    template: ChatTemplate
    dialect: Dialect
    messages: Sequence[Mapping[str, Any]]
    hears_effort: bool
    options: TemplateOptions


class ChatPreparer:
    """Prepares conversations for one model. Thread-safe.

    Args:
        template: The model's.
        tokenizer: The model's.
        tool_parser: One of `caudal.chat.dialect.TOOL_PARSERS`.
        reasoning_parser: One of `caudal.chat.dialect.REASONING_PARSERS`.
        request_templates: What runs templates that requests bring; None where they may bring none.
            Not what runs the model's: a stranger must not keep that busy.
        max_model_len: Most tokens that a prompt can have; None where that isn't known.
        opening: How all conversations begin.

    Raises:
        ParameterError: There is no parser of that name.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        *,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        request_templates: TemplateWorkers | None = None,
        max_model_len: int | None = None,
        opening: Opening = NO_OPENING,
    ) -> None:
        self.template = template
        self._opening = opening
        self._request_templates = request_templates
        self._max_model_len = max_model_len
        self._tokenizer = tokenizer
        self._choose = partial(
            choose_dialect, tool_parser=tool_parser, reasoning_parser=reasoning_parser
        )
        self._choose("", template_takes_tools=False)  # which refuses wrong names
        self._own_template = lru_cache(CACHED_TEMPLATES)(self._compile)
        self._habits = lru_cache(CACHED_TEMPLATES + 1)(learn_habits)
        self._takes_system = lru_cache(CACHED_TEMPLATES + 1)(takes_system)
        self._effort_words = lru_cache(CACHED_TEMPLATES + 16)(effort_words)

    @cached_property
    def dialect(self) -> Dialect:
        """How the model writes reasoning and calls."""
        return self._dialect_of(self.template)

    def start(self) -> None:
        """Start the processes that run templates, so that no conversation waits for that.

        Raises:
            TemplateProcessError: They can't be started.
        """
        self.template.start()
        if self._request_templates is not None:
            self._request_templates.start()

    @property
    def processes(self) -> TemplateProcesses:
        """How they are doing."""
        own = self.template.processes
        return own if self._request_templates is None else own + self._request_templates.processes

    def close(self) -> None:
        """End them; conversations under way get a `TemplateProcessError`. Safe to call twice."""
        self.template.close()
        if self._request_templates is not None:
            self._request_templates.close()

    def prepare(
        self, conversation: Conversation, content_form: StructuredOutputsParams | None = None
    ) -> ChatPrompt:
        """Render and tokenise a conversation. It waits for the template: not in the event loop.

        Args:
            conversation: The conversation.
            content_form: The form that the content of the answer must have.

        Raises:
            TemplateError: The template refuses the messages, in its own words, or takes too much.
            TemplateProcessError: Templates can't be run.
            ParameterError: Something in the conversation makes no sense, or can't be had of this
                model; names the field as in OpenAI's API.
        """
        asked = self._ask(conversation)
        dialect = asked.dialect
        tokens = asked.template.encode(
            asked.messages, max_tokens=self._max_model_len, **asked.options
        )
        plan = AnswerPlan(
            self._tokenizer, dialect, conversation, conversation.offered_tools, tokens, content_form
        )
        # A model that never thinks does what `none` asks for.
        unheard = not asked.hears_effort and (
            conversation.reasoning_effort != "none" or dialect.reasoning_parser != "none"
        )
        ignored = ["reasoning_effort"] if unheard else []
        ends_for_answer = not conversation.continue_final_message and asked.template.is_go
        if ends_for_answer and not conversation.add_generation_prompt:
            ignored.append("add_generation_prompt")
        # A variable that is false is what one is that nobody has set.
        ignored += [
            f"chat_template_kwargs.{name}"
            for name, value in conversation.template_kwargs.items()
            if value and not asked.template.reads(name)
        ]
        return replace(plan.prompt(), ignored=tuple(ignored))

    def render(self, conversation: Conversation) -> str:
        """A conversation's prompt as text; raises what `prepare` raises, and waits like it."""
        asked = self._ask(conversation)
        return asked.template.render(asked.messages, **asked.options)

    @cached_property
    def fills_gaps(self) -> bool:
        """Whether the model can write what is missing between two texts. It waits for the template.

        The template says so, or the vocabulary has tokens for it.
        """
        with contextlib.suppress(TemplateError):
            if self.template.supports_suffix:
                return True
        return self._tokenizer.fill_tokens is not None

    def fill(self, prompt: str, suffix: str) -> list[int]:
        """The prompt for what is missing between two texts. It waits for the template.

        Raises:
            ParameterError: The model can't write that; blames `suffix`.
            ContextOverflowError: They are too long for sure.
            TemplateError, TemplateProcessError: The template failed, or can't be run.
        """
        if not self.fills_gaps:
            raise ParameterError("suffix", "suffix: this model can't fill in what is before it.")
        if self.template.supports_suffix:
            return self.template.encode_gap(prompt, suffix, max_tokens=self._max_model_len)
        tokens = self._tokenizer.fill_tokens
        assert tokens is not None
        encode = self._tokenizer.encode_continuation
        return self._tokenizer.with_bos(
            [tokens.prefix, *encode(prompt), tokens.suffix, *encode(suffix), tokens.middle]
        )

    def _ask(self, conversation: Conversation) -> _Asked:
        if conversation.template:
            template, dialect = self._own_template(conversation.template)
        else:
            template, dialect = self.template, self.dialect
        _check(conversation)
        tools = conversation.offered_tools
        if conversation.tool_choice.mode == "required" and not tools:
            raise ParameterError("tool_choice", "tool_choice asks for a call, but tools is empty.")
        if dialect.tool_parser == "none" and (
            conversation.tool_choice.mode == "required" or any(tool.strict for tool in tools)
        ):
            raise ParameterError(
                "tools",
                "tools: the tool parser is none, which reads no tool calls and can't enforce any.",
            )
        taken = frozenset() if dialect.messages is None else dialect.messages.recipients
        for tool in tools:
            if tool.name in taken:
                raise ParameterError(
                    "tools",
                    f"tools: this model can't call a tool named {tool.name}, to whom it writes all "
                    "that is no call.",
                )
        native = takes_tools(template)
        words: EffortWords | None = EffortWords(variables={})
        if (effort := conversation.reasoning_effort) and not any(
            level in conversation.template_kwargs for level in LEVELS
        ):
            words = self._effort_words(effort, template, trained=dialect.efforts)
        told = self._opening.of(conversation, takes_system=lambda: self._takes_system(template))
        told = told if words is None else words.said_in(told)
        habits = TemplateHabits()
        if any(message.tool_calls or message.reasoning for message in told.messages):
            habits = self._habits(template)
        messages = template_messages(
            told, template, habits, tool_format=dialect.tools, with_tools_as_text=not native
        )
        if tools and tools_in_messages(template):
            messages = with_tools_in_system(messages, tools)
        variables = {} if words is None else words.variables
        options: TemplateOptions = {
            "tools": [tool_object(tool) for tool in tools]
            if tools and template.reads("tools")
            else None,
            "add_generation_prompt": conversation.add_generation_prompt,
            "continue_final_message": conversation.continue_final_message,
            "template_kwargs": {**variables, **conversation.template_kwargs},
        }
        as_text = not habits.writes_calls or not habits.calls_beside_text
        if as_text and dialect.tools is not None:
            options["assistant_markers"] = dialect.tools.markers
        return _Asked(template, dialect, messages, words is not None, options)

    def _compile(self, source: str) -> tuple[ChatTemplate, Dialect]:
        if self._request_templates is None:
            raise ParameterError(
                "chat_template",
                "chat_template is not taken from requests by this server, unless it is started "
                "with --allow-request-templates.",
            )
        if len(source) > MAX_TEMPLATE:
            raise ParameterError(
                "chat_template", f"chat_template may have at most {MAX_TEMPLATE} characters."
            )
        template = ChatTemplate(
            source,
            self._tokenizer,
            origin="from the request",
            field="chat_template",
            workers=self._request_templates,
        )
        template.check()
        return template, self._dialect_of(template)

    def _dialect_of(self, template: ChatTemplate) -> Dialect:
        return self._choose(
            "\n".join(template.sources),
            template_takes_tools=takes_tools(template),
            control_tokens=self._tokenizer.special_tokens,
            written=partial(written_format, template) if template.is_go else lambda: None,
            thinking_tags=template.thinking_tags,
        )


def _check(conversation: Conversation) -> None:
    if not conversation.continue_final_message:
        return
    if conversation.add_generation_prompt:
        raise ParameterError(
            "continue_final_message",
            "continue_final_message and add_generation_prompt exclude each other.",
        )
    last = conversation.messages[-1]
    if last.role != "assistant":
        raise ParameterError(
            "continue_final_message",
            "continue_final_message needs the last message to be the assistant's.",
        )
    if last.tool_calls:
        raise ParameterError(
            "continue_final_message", "a message with tool_calls can't be continued."
        )
