"""Which formats a model writes its reasoning and calls in, as its chat template shows."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass

from caudal.chat import harmony
from caudal.chat.calls.formats import HERMES, TOOL_FORMATS, ToolFormat
from caudal.chat.reasoning import REASONING_FORMATS, ReasoningFormat
from caudal.errors import ParameterError

NONE_KNOWN = "none known"
"""In place of a format's name, where a template takes tools and shows none that is known."""

_TOOL_SIGNS = (
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "thinking")),
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

_TOKEN_SIGNS = (("lfm2", "<|tool_call_start|>"), ("phi4_mini", "<|/tool_call|>"))
"""Control tokens that do where the template doesn't."""

_TOOL_ALIASES = {
    "phi4_mini_json": "phi4_mini",
    "qwen3_xml": "qwen3_coder",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
}
_REASONING_ALIASES = {
    "deepseek_r1": "think",
    "qwen3": "think",
    "openai_gptoss": harmony.NAME,
    harmony.NAME: harmony.NAME,
}

TOOL_PARSERS = ("auto", "none", harmony.NAME, *TOOL_FORMATS, *_TOOL_ALIASES)
REASONING_PARSERS = ("auto", "none", *REASONING_FORMATS, *_REASONING_ALIASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A model's formats.

    Attributes:
        tools: How it writes calls; None where calls are not looked for, and with harmony.
        reasoning: How it marks reasoning; None where it isn't looked for, and with harmony.
        unknown_tools: The template takes tools, but nothing shows how the model writes calls. Those
            that are demanded are enforced in Hermes's format; all others stay text.
        harmony_tools: Calls are told by harmony.
        harmony_reasoning: Reasoning is told by harmony.
    """

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    unknown_tools: bool = False
    harmony_tools: bool = False
    harmony_reasoning: bool = False

    @property
    def is_harmony(self) -> bool:
        """Whether answers are read as harmony."""
        return self.harmony_tools or self.harmony_reasoning

    @property
    def tool_parser(self) -> str:
        """The name of the tool format, for people."""
        if self.harmony_tools:
            return harmony.NAME
        if self.unknown_tools:
            return NONE_KNOWN
        return "none" if self.tools is None else self.tools.name

    @property
    def reasoning_parser(self) -> str:
        """The name of the reasoning format, for people."""
        if self.harmony_reasoning:
            return harmony.NAME
        return "none" if self.reasoning is None else self.reasoning.name

    @property
    def efforts(self) -> Sequence[str]:
        """How much the model knows to think; empty where its template is to decide."""
        return harmony.EFFORTS if self.is_harmony else ()

    @property
    def markers(self) -> Sequence[str]:
        """Texts that have to be seen to read an answer without calls."""
        if self.is_harmony:
            return harmony.MARKERS
        reasoning = self.reasoning
        return () if reasoning is None else (*reasoning.begins, reasoning.end)


def choose_dialect(
    template: str,
    *,
    template_takes_tools: bool,
    control_tokens: Container[str] = frozenset(),
    tool_parser: str = "auto",
    reasoning_parser: str = "auto",
) -> Dialect:
    """The formats that a template shows, or that a user names instead.

    Args:
        template: The template's source.
        template_takes_tools: Whether tools go through the template; if not, models are told of them
            in Hermes's format.
        control_tokens: Names of the model's control tokens.
        tool_parser: One of `TOOL_PARSERS`.
        reasoning_parser: One of `REASONING_PARSERS`.

    Raises:
        ParameterError: There is no format of that name.
    """
    _check_name("tool_parser", tool_parser, TOOL_PARSERS)
    _check_name("reasoning_parser", reasoning_parser, REASONING_PARSERS)
    is_harmony = harmony.CHANNEL in template and harmony.MESSAGE in template
    if tool_parser == "auto":
        tool_parser = harmony.NAME
        if not is_harmony:
            tool_parser = _tools_of(template, template_takes_tools, control_tokens)
    if reasoning_parser == "auto":
        reasoning_parser = harmony.NAME if is_harmony else _reasoning_of(template)
    tool_parser = _TOOL_ALIASES.get(tool_parser, tool_parser)
    reasoning_parser = _REASONING_ALIASES.get(reasoning_parser, reasoning_parser)
    if harmony.NAME in (tool_parser, reasoning_parser):
        return Dialect(
            tools=None,
            reasoning=None,
            harmony_tools=tool_parser != "none",
            harmony_reasoning=reasoning_parser != "none",
        )
    return Dialect(
        tools=TOOL_FORMATS.get(tool_parser),
        reasoning=REASONING_FORMATS.get(reasoning_parser),
        unknown_tools=tool_parser == NONE_KNOWN,
    )


def _tools_of(template: str, takes_tools: bool, control_tokens: Container[str]) -> str:
    if not takes_tools:
        return HERMES.name
    for name, signs in _TOOL_SIGNS:
        if all(sign in template for sign in signs):
            return name
    for name, token in _TOKEN_SIGNS:
        if token in control_tokens:
            return name
    return NONE_KNOWN


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
