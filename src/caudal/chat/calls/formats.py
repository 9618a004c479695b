"""The formats of tool calls, by the names that vLLM's users know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caudal.chat.calls.deepseek_calls import (
    CALL_BEGIN,
    CALL_END,
    CALLS_BEGIN,
    CALLS_END,
    KIMI_ARGUMENTS,
    KIMI_CALL_BEGIN,
    KIMI_CALL_END,
    KIMI_CALLS_BEGIN,
    KIMI_CALLS_END,
    SEPARATOR,
    read_deepseek,
    read_kimi,
)
from caudal.chat.calls.invoke_calls import DSML, invoked, read_glm
from caudal.chat.calls.json_calls import (
    read_calls,
    read_function,
    read_mistral,
    separated,
    tagged,
)
from caudal.chat.calls.python_calls import read_marked_list, read_tool_code
from caudal.chat.calls.reading import Reader
from caudal.chat.calls.tag_calls import (
    FUNCTION,
    FUNCTION_END,
    PARAMETER,
    PARAMETER_END,
    function_tags,
    gemma,
)
from caudal.chat.conversation import Tool
from caudal.chat.member_grammar import MemberSyntax, TextSyntax, can_write
from caudal.chat.text_input import TEXT_BEGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How enforced calls are written.

    A call is `head`, with `NAME` in place of the tool's name and `NUMBER` of the call's place among
    the others, from 0, then the arguments, then `tail`.

    Attributes:
        head: Before the arguments.
        tail: After them.
        begin: Before the first call.
        separator: Between calls; None where an answer has only one.
        end: After the last call.
        members: How each argument is written; None where all are one JSON object.
        text_head: After `begin` and before a custom tool's text that has a grammar; None: `head`,
            and a mark.
    """

    head: str
    tail: str
    begin: str = ""
    separator: str | None = ""
    end: str = ""
    members: MemberSyntax | None = None
    text_head: str | None = None

    @property
    def head_of_text(self) -> str:
        """What stands before a custom tool's text that has a grammar; the answer ends with it."""
        if self.text_head is not None:
            return self.text_head
        return self.head.replace("NUMBER", "0") + TEXT_BEGIN

    def can_write(self, tools: Iterable[Tool]) -> bool:
        """Whether calls of all these tools can be held to their schemas in this syntax."""
        members = self.members
        return members is None or all(
            tool.grammar is None and tool.checked and can_write(tool.parameters, members)
            for tool in tools
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way to write calls.

    Attributes:
        name: As in `--tool-parser`.
        read: Reads what follows one of `begins`, or text that begins with one of `bare`.
        begins: Markers that begin a call, or a block of calls; none is part of another.
        bare: Characters that may begin a call where they are an answer's first.
        markers: Texts that steer a reader; where they are control tokens, it has to see them.
        syntax: How an enforced call is written.
    """

    name: str
    read: Reader
    begins: tuple[str, ...] = ()
    bare: str = ""
    markers: tuple[str, ...] = ()
    syntax: CallSyntax


_JSON_HEAD = '{"name": "NAME", "arguments": '

_KEYWORDS = MemberSyntax(head="KEY=", separator=", ")

_DEEPSEEK_MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)


def _tagged(name: str, begin: str, end: str, syntax: CallSyntax) -> ToolFormat:
    """Calls in JSON, with a text before and behind one of them or all."""
    return ToolFormat(
        name=name, read=tagged(end), begins=(begin,), markers=(begin, end), syntax=syntax
    )


def _json_list(begin: str, end: str = "") -> CallSyntax:
    """Calls as a list of JSON objects, with these around it."""
    return CallSyntax(begin=f"{begin}[", head=_JSON_HEAD, tail="}", separator=", ", end=f"]{end}")


def _python_list(begin: str = "", end: str = "") -> CallSyntax:
    """Calls as a list of Python's, with these around it."""
    return CallSyntax(
        begin=f"{begin}[",
        head="NAME(",
        tail=")",
        separator=", ",
        end=f"]{end}",
        members=_KEYWORDS,
    )


def _tagged_members(head: str, end: str, *, pad: str = "") -> MemberSyntax:
    """Arguments that are a line each, or, with `pad`, that have lines of their own."""
    return MemberSyntax(
        head=head + pad,
        tail=f"{pad}{end}\n",
        text=TextSyntax(begin="", end=end, pad=pad, tail="\n"),
    )


def _function_tags(name: str, tag: str, *, pad: str = "") -> ToolFormat:
    """A tag for the call, in it one for the function, in it one for each argument."""
    begin, end = f"<{tag}>", f"</{tag}>"
    return ToolFormat(
        name=name,
        read=function_tags(end),
        begins=(begin, FUNCTION),
        markers=(begin, end),
        syntax=CallSyntax(
            head=f"{begin}\n{FUNCTION}NAME>\n",
            tail=f"{FUNCTION_END}\n{end}",
            separator="\n",
            members=_tagged_members(f"{PARAMETER}KEY>", PARAMETER_END, pad=pad),
        ),
    )


def _glm(name: str, *, line: str) -> ToolFormat:
    """Tags for keys and values by turns, each in a line of its own or not."""
    tags = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    begin, end, key, key_end, value, value_end = tags
    return ToolFormat(
        name=name,
        read=read_glm,
        begins=(begin,),
        markers=tags,
        syntax=CallSyntax(
            head=f"{begin}NAME{line}",
            tail=end,
            separator=line,
            members=MemberSyntax(
                head=f"{key}KEY{key_end}{line}{value}",
                tail=f"{value_end}{line}",
                text=TextSyntax(begin="", end=value_end, tail=line),
            ),
        ),
    )


def _dsml(name: str, block: str, other_block: str) -> ToolFormat:
    """DeepSeek's markup, whose parameters say whether they are text or JSON."""
    head = f'<{DSML}parameter name="KEY" string='
    end = f"</{DSML}parameter>"
    return ToolFormat(
        name=name,
        read=invoked(DSML, (block, other_block)),
        begins=(f"<{block}>", f"<{other_block}>"),
        markers=(DSML,),
        syntax=CallSyntax(
            begin=f"<{block}>\n",
            head=f'<{DSML}invoke name="NAME">\n',
            tail=f"</{DSML}invoke>",
            separator="\n",
            end=f"\n</{block}>",
            members=MemberSyntax(
                head=f'{head}"false">',
                tail=f"{end}\n",
                text=TextSyntax(begin="", end=end, tail="\n", head=f'{head}"true">'),
            ),
        ),
    )


def _deepseek(name: str, head: str, tail: str, separator: str) -> ToolFormat:
    """A block of calls, as DeepSeek's V3 marks it."""
    return ToolFormat(
        name=name,
        read=read_deepseek,
        begins=(CALLS_BEGIN, CALL_BEGIN),
        markers=_DEEPSEEK_MARKERS,
        syntax=CallSyntax(
            begin=CALLS_BEGIN,
            head=f"{CALL_BEGIN}{head}",
            tail=f"{tail}{CALL_END}",
            separator=separator,
            end=CALLS_END,
        ),
    )


def _gemma(name: str, begin: str, end: str, quote: str) -> ToolFormat:
    """`call:NAME{KEY:VALUE,…}` between two markers, with strings between two of another."""
    return ToolFormat(
        name=name,
        read=gemma(quote, end),
        begins=(begin,),
        markers=(begin, end, quote),
        syntax=CallSyntax(
            head=f"{begin}call:NAME{{",
            tail=f"}}{end}",
            members=MemberSyntax(
                head="KEY:", separator=",", text=TextSyntax(begin=quote, end=quote), nested=True
            ),
        ),
    )


def json_format(begin: str, end: str, *, in_list: bool, name: str, arguments: str) -> ToolFormat:
    """Calls in JSON behind a text, as a template is seen to write them.

    Args:
        begin: The text; where it is empty, calls begin an answer.
        end: What follows them, which may be missing.
        in_list: They are in a list.
        name: The key of a call's tool.
        arguments: The key of its arguments.
    """
    head = f'{{"{name}": "NAME", "{arguments}": '
    if in_list:
        syntax = CallSyntax(begin=f"{begin}[", head=head, tail="}", separator=", ", end=f"]{end}")
    else:
        syntax = CallSyntax(head=begin + head, tail=f"}}{end}", separator="\n")
    return ToolFormat(
        name="json",
        read=tagged(end) if end else read_calls,
        begins=(begin,) if begin else (),
        bare="" if begin else "[" if in_list else "{",
        markers=tuple(filter(None, (begin, end))),
        syntax=syntax,
    )


HERMES = _tagged(
    "hermes",
    "<tool_call>",
    "</tool_call>",
    CallSyntax(
        head=f"<tool_call>\n{_JSON_HEAD}",
        tail="}\n</tool_call>",
        separator="\n",
    ),
)

_ALL = (
    HERMES,
    _function_tags("qwen3_coder", "tool_call", pad="\n"),
    _function_tags("seed_oss", "seed:tool_call"),
    ToolFormat(
        name="functionary",
        read=read_function,
        begins=(FUNCTION,),
        syntax=CallSyntax(head=f"{FUNCTION}NAME>", tail=FUNCTION_END),
    ),
    _glm("glm45", line="\n"),
    _glm("glm47", line=""),
    ToolFormat(
        name="minimax_m2",
        read=invoked("", ("minimax:tool_call",)),
        begins=("<minimax:tool_call>",),
        markers=("<minimax:tool_call>", "</minimax:tool_call>"),
        syntax=CallSyntax(
            begin="<minimax:tool_call>\n",
            head='<invoke name="NAME">\n',
            tail="</invoke>",
            separator="\n",
            end="\n</minimax:tool_call>",
            members=_tagged_members('<parameter name="KEY">', "</parameter>"),
        ),
    ),
    _dsml("deepseek_v32", f"{DSML}function_calls", f"{DSML}tool_calls"),
    _dsml("deepseek_v4", f"{DSML}tool_calls", f"{DSML}function_calls"),
    ToolFormat(
        name="kimi_k2",
        read=read_kimi,
        begins=(KIMI_CALLS_BEGIN, KIMI_CALL_BEGIN),
        markers=(KIMI_CALLS_BEGIN, KIMI_CALLS_END, KIMI_CALL_BEGIN, KIMI_ARGUMENTS, KIMI_CALL_END),
        syntax=CallSyntax(
            begin=KIMI_CALLS_BEGIN,
            head=f"{KIMI_CALL_BEGIN}functions.NAME:NUMBER{KIMI_ARGUMENTS}",
            tail=KIMI_CALL_END,
            end=KIMI_CALLS_END,
        ),
    ),
    _tagged(
        "cohere",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        CallSyntax(
            begin="<|START_ACTION|>[\n",
            head='    {"tool_call_id": "NUMBER", "tool_name": "NAME", "parameters": ',
            tail="}",
            separator=",\n",
            end="\n]<|END_ACTION|>",
        ),
    ),
    _tagged("nemotron", "<TOOLCALL>", "</TOOLCALL>", _json_list("<TOOLCALL>", "</TOOLCALL>")),
    _tagged("apriel", "<tool_calls>", "</tool_calls>", _json_list("<tool_calls>", "</tool_calls>")),
    ToolFormat(
        name="llama3_json",
        read=separated(";"),
        begins=("<|python_tag|>",),
        bare="{",
        markers=("<|python_tag|>",),
        syntax=CallSyntax(
            head='{"name": "NAME", "parameters": ',
            tail="}",
            separator="; ",
        ),
    ),
    ToolFormat(
        name="pythonic",
        read=read_marked_list("<|python_end|>"),
        begins=("<|python_start|>",),
        bare="[",
        markers=("<|python_start|>", "<|python_end|>"),
        syntax=_python_list(),
    ),
    ToolFormat(
        name="lfm2",
        read=read_marked_list("<|tool_call_end|>"),
        begins=("<|tool_call_start|>",),
        markers=("<|tool_call_start|>", "<|tool_call_end|>"),
        syntax=_python_list("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    ToolFormat(
        name="mistral",
        read=read_mistral,
        begins=("[TOOL_CALLS]",),
        markers=("[TOOL_CALLS]",),
        syntax=_json_list("[TOOL_CALLS]"),
    ),
    ToolFormat(
        name="mistral_args",
        read=read_mistral,
        begins=("[TOOL_CALLS]",),
        markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        syntax=CallSyntax(head="[TOOL_CALLS]NAME[ARGS]", tail=""),
    ),
    _deepseek("deepseek_v3", f"function{SEPARATOR}NAME\n```json\n", "\n```", "\n"),
    _deepseek("deepseek_v31", f"NAME{SEPARATOR}", "", ""),
    ToolFormat(
        name="granite",
        read=read_calls,
        begins=("<|tool_call|>", "<tool_call>"),
        markers=("<|tool_call|>", "<tool_call>"),
        syntax=_json_list("<|tool_call|>"),
    ),
    _tagged(
        "phi4_mini",
        "<|tool_call|>",
        "<|/tool_call|>",
        _json_list("<|tool_call|>", "<|/tool_call|>"),
    ),
    ToolFormat(
        name="gemma",
        read=read_tool_code,
        begins=("```tool_code\n",),
        syntax=CallSyntax(
            begin="```tool_code\n",
            head="NAME(",
            tail=")",
            separator="\n",
            end="\n```",
            members=_KEYWORDS,
        ),
    ),
    _gemma("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
    _gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
)

TOOL_FORMATS: Mapping[str, ToolFormat] = {tool_format.name: tool_format for tool_format in _ALL}
"""All formats but those whose answers are messages, in which calls can't be told from the rest: see
`caudal.chat.message_format`."""
