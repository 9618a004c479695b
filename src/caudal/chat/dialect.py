"""Which formats a model writes its reasoning and calls in, as its chat template shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass

from caudal.chat.calls.formats import HERMES, TOOL_FORMATS, ToolFormat
from caudal.chat.harmony import HARMONY
from caudal.chat.message_format import MessageFormat
from caudal.chat.muse import MUSE_GLIMMER
from caudal.chat.reasoning import REASONING_FORMATS, ReasoningFormat
from caudal.errors import ParameterError

NONE_KNOWN = "none known"
"""In place of a format's name, where a template takes tools and shows none that is known."""

_TOOL_SIGNS = (
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "thinking")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>{{ .Function.Arguments")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>{{.Function.Arguments")),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>",)),
    ("mistral_args", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("deepseek_v4", ("｜DSML｜", "'tool_calls>")),
    ("deepseek_v32", ("｜DSML｜",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    (NONE_KNOWN, ("]<]minimax[>[",)),  # MiniMax M3
    ("glm47", ("<tool_call>", "</arg_key><arg_value>")),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("cohere", ("<|START_ACTION|>",)),
    ("nemotron", ("<TOOLCALL>",)),
    ("apriel", ("<tool_calls>",)),
    ("functiongemma", ("<start_function_call>",)),
    ("gemma4", ("<|tool_call>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("functionary", ("<function=",)),
    ("phi4_mini", ("<|tool_call|>", "<|/tool_call|>")),
    ("granite", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>",)),
    ("llama3_json", ("<|start_header_id|>",)),
    ("llama3_json", ("<|python_tag|>",)),
)
"""Texts in a template that give a format away; the first that has all of its texts counts."""

_UNMARKED = (NONE_KNOWN, "llama3_json")
"""What a template comes to in which no markers are found."""

_TOKEN_SIGNS = (("lfm2", "<|tool_call_start|>"), ("phi4_mini", "<|/tool_call|>"))
"""Control tokens that do where the template doesn't."""

MESSAGE_FORMATS: Mapping[str, MessageFormat] = {
    message_format.name: message_format for message_format in (HARMONY, MUSE_GLIMMER)
}
"""All formats of answers that are a row of messages. Their signs count before all others."""

_TOOL_ALIASES = {
    "muse": MUSE_GLIMMER.name,
    "phi4_mini_json": "phi4_mini",
    "qwen3_xml": "qwen3_coder",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
}
_REASONING_ALIASES = {
    "deepseek_r1": "think",
    "qwen3": "think",
    "openai_gptoss": HARMONY.name,
    "muse": MUSE_GLIMMER.name,
}

TOOL_PARSERS = ("auto", "none", *MESSAGE_FORMATS, *TOOL_FORMATS, *_TOOL_ALIASES)
REASONING_PARSERS = ("auto", "none", *MESSAGE_FORMATS, *REASONING_FORMATS, *_REASONING_ALIASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A model's formats.

    Attributes:
        tools: How it writes calls; None where calls are not looked for, and with messages.
        reasoning: How it marks reasoning; None where it isn't looked for, and with messages.
        unknown_tools: The template takes tools, but nothing shows how the model writes calls. Those
            that are demanded are enforced in Hermes's format; all others stay text.
        messages: How it writes messages, where answers are a row of these.
        message_tools: Calls are told by messages.
        message_reasoning: Reasoning is told by messages.
    """

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    unknown_tools: bool = False
    messages: MessageFormat | None = None
    message_tools: bool = False
    message_reasoning: bool = False

    @property
    def tool_parser(self) -> str:
        """The name of the tool format, for people."""
        if self.messages is not None and self.message_tools:
            return self.messages.name
        if self.unknown_tools:
            return NONE_KNOWN
        return "none" if self.tools is None else self.tools.name

    @property
    def reasoning_parser(self) -> str:
        """The name of the reasoning format, for people."""
        if self.messages is not None and self.message_reasoning:
            return self.messages.name
        return "none" if self.reasoning is None else self.reasoning.name

    @property
    def efforts(self) -> Sequence[str]:
        """How much the model knows to think; empty where its template is to decide."""
        return () if self.messages is None else self.messages.efforts

    @property
    def markers(self) -> Sequence[str]:
        """Texts that have to be seen to read an answer without calls."""
        if self.messages is not None:
            return self.messages.markers
        reasoning = self.reasoning
        return () if reasoning is None else (*reasoning.begins, reasoning.end)


def choose_dialect(
    template: str,
    *,
    template_takes_tools: bool,
    control_tokens: Container[str] = frozenset(),
    tool_parser: str = "auto",
    reasoning_parser: str = "auto",
    written: Callable[[], ToolFormat | None] = lambda: None,
    thinking_tags: tuple[str, str] | None = None,
) -> Dialect:
    """The formats that a template shows, or that a user names instead.

    Args:
        template: The template's source.
        template_takes_tools: Whether tools go through the template; if not, models are told of them
            in Hermes's format.
        control_tokens: Names of the model's control tokens.
        tool_parser: One of `TOOL_PARSERS`.
        reasoning_parser: One of `REASONING_PARSERS`.
        written: Says how the template writes calls; asked where its text shows no markers of any.
        thinking_tags: What the template's syntax shows around thoughts, where its text has no
            markers of any.

    Raises:
        ParameterError: There is no format of that name.
    """
    _check_name("tool_parser", tool_parser, TOOL_PARSERS)
    _check_name("reasoning_parser", reasoning_parser, REASONING_PARSERS)
    signed = (known.name for known in MESSAGE_FORMATS.values() if _all_in(template, known.signs))
    shown = next(signed, "")
    chooses_tools, chooses_reasoning = tool_parser == "auto", reasoning_parser == "auto"
    if chooses_tools:
        tool_parser = shown or _tools_of(template, template_takes_tools, control_tokens)
    if chooses_reasoning:
        reasoning_parser = shown or _reasoning_of(template)
    tool_parser = _TOOL_ALIASES.get(tool_parser, tool_parser)
    reasoning_parser = _REASONING_ALIASES.get(reasoning_parser, reasoning_parser)
    for name in (tool_parser, reasoning_parser):
        if name in MESSAGE_FORMATS:
            return Dialect(
                tools=None,
                reasoning=None,
                messages=MESSAGE_FORMATS[name],
                message_tools=tool_parser != "none",
                message_reasoning=reasoning_parser != "none",
            )
    tools = TOOL_FORMATS.get(tool_parser)
    if chooses_tools and tool_parser in _UNMARKED and (found := written()) is not None:
        tools, tool_parser = found, found.name
    reasoning = REASONING_FORMATS.get(reasoning_parser)
    if chooses_reasoning and reasoning is None and thinking_tags is not None:
        begin, end = thinking_tags
        reasoning = ReasoningFormat("tags", (begin,), end)
    return Dialect(
        tools=tools,
        reasoning=reasoning,
        unknown_tools=tool_parser == NONE_KNOWN,
    )


def _tools_of(template: str, takes_tools: bool, control_tokens: Container[str]) -> str:
    if not takes_tools:
        return HERMES.name
    for name, signs in _TOOL_SIGNS:
        if _all_in(template, signs):
            return name
    for name, token in _TOKEN_SIGNS:
        if token in control_tokens:
            return name
    return NONE_KNOWN


def _all_in(template: str, signs: Sequence[str]) -> bool:
    return all(sign in template for sign in signs)


def _reasoning_of(template: str) -> str:
    for reasoning in REASONING_FORMATS.values():
        if reasoning.end in template:
            return reasoning.name
    return "none"


def _check_name(param: str, name: str, allowed: Collection[str]) -> None:
    if name not in allowed:
        raise ParameterError(
            param, f"{param} must be one of {', '.join(allowed)}, but is {name!r}."
        )
