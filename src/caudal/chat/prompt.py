"""A prompt, and all that follows from how it ends: what its answer may be and what reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caudal.chat.answer_grammar import AnswerGrammar, ReasoningSyntax
from caudal.chat.calls.formats import HERMES, CallSyntax, ToolFormat
from caudal.chat.calls.scanner import CallsPlace, ToolScanner
from caudal.chat.conversation import Conversation, Tool
from caudal.chat.dialect import Dialect
from caudal.chat.event_writer import EventWriter
from caudal.chat.message_format import START
from caudal.chat.messages import MessagesParser
from caudal.chat.parser import AnswerParser, MarkedAnswerParser, new_call_id
from caudal.chat.reasoning import ReasoningFormat, ReasoningSplitter
from caudal.chat.tool_prompt import text_of
from caudal.engine.thinking import ThinkingLimit, ThinkingMarkers, ThinkingSyntax
from caudal.errors import ParameterError
from caudal.formats.tokenizer import Tokenizer
from caudal.structured_outputs import StructuredOutputsParams

_TAIL = 48
"""Tokens at a prompt's end that may be what begins an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation, ready to be submitted.

    Attributes:
        tokens: The prompt.
        new_parser: Makes what reads an answer; one for each sequence.
        visible_tokens: Control tokens that the parser needs to see in the text.
        structured_outputs: The form that the answer is held to, if any.
        thinking: How the model's thinking is told, for those who bound it; None where it isn't.
        ignored: What the conversation asks for that has no effect on this model, named as in
            OpenAI's API.
    """

    tokens: Sequence[int]
    new_parser: Callable[[], AnswerParser]
    visible_tokens: frozenset[int]
    structured_outputs: StructuredOutputsParams | None
    thinking: ThinkingSyntax | None = None
    ignored: Sequence[str] = ()

    def thinking_limit(self, max_tokens: int | None) -> ThinkingLimit | None:
        """A bound on the model's thinking; None without one, or where thinking isn't told."""
        if max_tokens is None or self.thinking is None:
            return None
        return ThinkingLimit(
            max_tokens=max_tokens, syntax=self.thinking, visible_tokens=self.visible_tokens
        )


class AnswerPlan:
    """One conversation's answer: how it begins, what it may be, and what reads it.

    Args:
        tokenizer: The model's.
        dialect: How the model writes reasoning and calls.
        conversation: What is asked.
        tools: The tools on offer.
        tokens: The rendered conversation.
        content_form: The form that the content must have.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dialect: Dialect,
        conversation: Conversation,
        tools: Sequence[Tool],
        tokens: Sequence[int],
        content_form: StructuredOutputsParams | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._dialect = dialect
        self._conversation = conversation
        self._tools = tools
        self._tokens = tokens
        self._content_form = content_form
        self._required = conversation.tool_choice.mode == "required"
        # Whether a grammar sees to it that calls are well-formed.
        self._live = self._required or any(
            content_form is not None or tool.strict for tool in tools
        )
        self._tail = tokenizer.decode(tokens[-_TAIL:], skip_special_tokens=False)

    def prompt(self) -> ChatPrompt:
        """Everything that is needed to submit it.

        Raises:
            ParameterError: What is asked for can't be had together.
        """
        special = self._special_tokens()
        return ChatPrompt(
            tokens=self._tokens,
            new_parser=self._parser_factory(),
            visible_tokens=frozenset(special.values()),
            structured_outputs=self._form(special),
            thinking=self._thinking(),
        )

    @property
    def _format(self) -> ToolFormat | None:
        """How calls are written; where no schema can be enforced on that, in Hermes's format."""
        native = self._dialect.tools
        if self._live and self._dialect.unknown_tools:
            return HERMES
        if self._live and native is not None and not native.syntax.can_write(self._tools):
            return HERMES
        return native

    def _special_tokens(self) -> Mapping[str, int]:
        """Control tokens that answers to this conversation are read by."""
        markers = [*self._dialect.markers]
        if self._format is not None and self._tools:
            markers += self._format.markers
        return {
            text: token
            for text, token in self._tokenizer.special_tokens.items()
            if len(text) > 1 and any(text in marker for marker in markers)
        }

    @property
    def _has_message_calls(self) -> bool:
        """Whether there may be calls that are messages."""
        return self._dialect.message_tools and bool(self._tools)

    @property
    def _enforces_json_calls(self) -> bool:
        """Whether calls that are messages are held to schemas that only JSON can follow."""
        messages = self._dialect.messages
        return messages is not None and self._live and not messages.syntax.can_write(self._tools)

    def _thinking(self) -> ThinkingSyntax | None:
        """How thinking is told: as the parser tells it."""
        messages = self._dialect.messages
        if messages is not None and self._dialect.message_reasoning:
            return messages.thinking(
                with_calls=self._has_message_calls, prompt_end=self._begun_message()
            )
        reasoning, open_already = self._reasoning_format(), self._reasoning_is_open()
        if reasoning is None:
            return None
        return ThinkingMarkers(
            begins=reasoning.begins, end=reasoning.end, open_already=open_already
        )

    def _parser_factory(self) -> Callable[[], AnswerParser]:
        dialect, live = self._dialect, self._live
        tools = {tool.name: tool for tool in self._tools}
        text_inputs = {
            tool.name: tool.text_input for tool in self._tools if tool.text_input is not None
        }
        messages = dialect.messages
        if messages is not None:
            offered = tools if self._has_message_calls else None
            prompt_end, json_calls = self._begun_message(), self._enforces_json_calls
            return lambda: MessagesParser(
                messages,
                EventWriter(new_call_id, live=live, text_inputs=text_inputs),
                tools=offered,
                with_reasoning=dialect.message_reasoning,
                live=live,
                json_calls=json_calls,
                only_calls=self._required,
                prompt_end=prompt_end,
            )
        tool_format = self._format
        reasoning, open_already = self._reasoning_format(), self._reasoning_is_open()
        place: CallsPlace = "among"
        if self._required:
            place = "only"
        elif self._content_form is not None:
            place = "instead"

        def new_parser() -> AnswerParser:
            writer = EventWriter(new_call_id, live=live, text_inputs=text_inputs)
            splitter = None
            if reasoning is not None:
                splitter = ReasoningSplitter(reasoning, open_already=open_already)
            scanner = None
            if tool_format is not None and tools:
                scanner = ToolScanner(tool_format, tools, writer, live=live, place=place)
            return MarkedAnswerParser(splitter, scanner, writer)

        return new_parser

    def _form(self, special: Mapping[str, int]) -> StructuredOutputsParams | None:
        """The whole answer's form, from what is demanded of its content and calls."""
        content_form = self._content_form
        if content_form is None and not self._live:
            return None
        messages = self._dialect.messages
        grammar = AnswerGrammar(
            special_tokens=special,
            reasoning=self._reasoning_syntax(),
            answer_begin=messages.answer_begin
            if messages is not None and self._begun_message() == ""
            else "",
        )
        parallel = self._conversation.parallel_tool_calls
        syntax, bare = self._call_syntax()
        if self._required:
            return grammar.calls(syntax, self._tools, parallel=parallel)
        if content_form is None:
            return grammar.calls_or_text(syntax, self._tools, parallel=parallel, bare=bare)
        if self._tools:
            form = grammar.calls_or_form(syntax, self._tools, content_form, parallel=parallel)
            if form is None:
                raise ParameterError(
                    "structured_outputs",
                    f"A {content_form.kind} can't be demanded of an answer that may have tool "
                    'calls; set tool_choice to "none".',
                )
            return form
        if grammar.reasoning is None and not grammar.answer_begin:
            return content_form
        return grammar.form(content_form) or content_form

    def _call_syntax(self) -> tuple[CallSyntax, str]:
        if (messages := self._dialect.messages) is not None:
            return messages.json_syntax if self._enforces_json_calls else messages.syntax, ""
        tool_format = self._format or HERMES
        return tool_format.syntax, tool_format.bare

    def _reasoning_syntax(self) -> ReasoningSyntax | None:
        if (messages := self._dialect.messages) is not None:
            if self._begun_message():
                return None
            return ReasoningSyntax(
                begin=messages.thought_begin, end=messages.thought_end, open_already=False
            )
        reasoning, open_already = self._reasoning_format(), self._reasoning_is_open()
        if reasoning is None:
            return None
        return ReasoningSyntax(
            begin=reasoning.begins[0], end=reasoning.end, open_already=open_already
        )

    @property
    def _prefill(self) -> str:
        """The part of the answer that the client wrote itself."""
        if not self._conversation.continue_final_message:
            return ""
        return text_of(self._conversation.messages[-1])

    def _reasoning_format(self) -> ReasoningFormat | None:
        """How reasoning is marked; None where none is looked for: a client's text is content."""
        expected = not self._prefill or self._reasoning_is_open()
        return self._dialect.reasoning if expected else None

    def _reasoning_is_open(self) -> bool:
        """Whether the prompt ends within reasoning: templates or clients may begin it."""
        reasoning = self._dialect.reasoning
        if reasoning is None:
            return False
        if self._prefill:
            text = self._prefill.lstrip()
            return text.startswith(reasoning.begins) and reasoning.end not in text
        return self._tail.rstrip().endswith(tuple(begin.rstrip() for begin in reasoning.begins))

    def _begun_message(self) -> str:
        """The header of the message that is to be written, as far as the prompt has it."""
        start = self._tokenizer.special_tokens.get(START)
        if start is None or start not in self._tokens:
            return ""
        tokens = list(self._tokens)
        begin = len(tokens) - 1 - tokens[::-1].index(start)
        header = self._tokenizer.decode(tokens[begin + 1 :], skip_special_tokens=False)
        return header.removeprefix("assistant")
