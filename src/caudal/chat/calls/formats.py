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
from caudal.chat.calls.tag_calls import FUNCTION, function_tags, gemma
from caudal.chat.conversation import Tool
from caudal.chat.member_grammar import MemberSyntax, TextSyntax, can_write
from caudal.chat.text_input import TEXT_BEGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How enforced calls are written.

    A call is `head`, with `NAME` in place of the tool's name, then the arguments, then `tail`.

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
        return self.head + TEXT_BEGIN if self.text_head is None else self.text_head

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


HERMES = ToolFormat(
    name="hermes",
    read=tagged("</tool_call>"),
    begins=("<tool_call>",),
    markers=("<tool_call>", "</tool_call>"),
    syntax=CallSyntax(
        head='<tool_call>\n{"name": "NAME", "arguments": ',
        tail="}\n</tool_call>",
        separator="\n",
    ),
)

_KEYWORDS = MemberSyntax(head="KEY=", separator=", ")

_DEEPSEEK_MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)

_ALL = (
    HERMES,
    ToolFormat(
        name="qwen3_coder",
        read=function_tags("</tool_call>"),
        begins=("<tool_call>", FUNCTION),
        markers=("<tool_call>", "</tool_call>"),
        syntax=CallSyntax(
            head=f"<tool_call>\n{FUNCTION}NAME>\n",
            tail="</function>\n</tool_call>",
            separator="\n",
            members=MemberSyntax(
                head="<parameter=KEY>\n",
                tail="\n</parameter>\n",
                text=TextSyntax(begin="", end="</parameter>", pad="\n", tail="\n"),
            ),
        ),
    ),
    ToolFormat(
        name="seed_oss",
        read=function_tags("</seed:tool_call>"),
        begins=("<seed:tool_call>", FUNCTION),
        markers=("<seed:tool_call>", "</seed:tool_call>"),
        syntax=CallSyntax(
            head=f"<seed:tool_call>\n{FUNCTION}NAME>\n",
            tail="</function>\n</seed:tool_call>",
            separator="\n",
            members=MemberSyntax(
                head="<parameter=KEY>",
                tail="</parameter>\n",
                text=TextSyntax(begin="", end="</parameter>", tail="\n"),
            ),
        ),
    ),
    ToolFormat(
        name="functionary",
        read=read_function,
        begins=(FUNCTION,),
        syntax=CallSyntax(head=f"{FUNCTION}NAME>", tail="</function>"),
    ),
    ToolFormat(
        name="glm45",
        read=read_glm,
        begins=("<tool_call>",),
        markers=(
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
        syntax=CallSyntax(
            head="<tool_call>NAME\n",
            tail="</tool_call>",
            separator="\n",
            members=MemberSyntax(
                head="<arg_key>KEY</arg_key>\n<arg_value>",
                tail="</arg_value>\n",
                text=TextSyntax(begin="", end="</arg_value>", tail="\n"),
            ),
        ),
    ),
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
            members=MemberSyntax(
                head='<parameter name="KEY">',
                tail="</parameter>\n",
                text=TextSyntax(begin="", end="</parameter>", tail="\n"),
            ),
        ),
    ),
    ToolFormat(
        name="deepseek_v32",
        read=invoked(DSML, (f"{DSML}function_calls", f"{DSML}tool_calls")),
        begins=(f"<{DSML}function_calls>", f"<{DSML}tool_calls>"),
        markers=(DSML,),
        syntax=CallSyntax(
            begin=f"<{DSML}function_calls>\n",
            head=f'<{DSML}invoke name="NAME">\n',
            tail=f"</{DSML}invoke>",
            separator="\n",
            end=f"\n</{DSML}function_calls>",
            members=MemberSyntax(
                head=f'<{DSML}parameter name="KEY" string="false">', tail=f"</{DSML}parameter>\n"
            ),
        ),
    ),
    ToolFormat(
        name="kimi_k2",
        read=read_kimi,
        begins=(KIMI_CALLS_BEGIN, KIMI_CALL_BEGIN),
        markers=(KIMI_CALLS_BEGIN, KIMI_CALLS_END, KIMI_CALL_BEGIN, KIMI_ARGUMENTS, KIMI_CALL_END),
        syntax=CallSyntax(
            begin=KIMI_CALLS_BEGIN,
            head=f"{KIMI_CALL_BEGIN}functions.NAME:0{KIMI_ARGUMENTS}",
            tail=KIMI_CALL_END,
            end=KIMI_CALLS_END,
        ),
    ),
    ToolFormat(
        name="cohere",
        read=tagged("<|END_ACTION|>"),
        begins=("<|START_ACTION|>",),
        markers=("<|START_ACTION|>", "<|END_ACTION|>"),
        syntax=CallSyntax(
            begin="<|START_ACTION|>[\n",
            head='    {"tool_call_id": "0", "tool_name": "NAME", "parameters": ',
            tail="}",
            separator=",\n",
            end="\n]<|END_ACTION|>",
        ),
    ),
    ToolFormat(
        name="nemotron",
        read=tagged("</TOOLCALL>"),
        begins=("<TOOLCALL>",),
        markers=("<TOOLCALL>", "</TOOLCALL>"),
        syntax=CallSyntax(
            begin="<TOOLCALL>[",
            head='{"name": "NAME", "arguments": ',
            tail="}",
            separator=", ",
            end="]</TOOLCALL>",
        ),
    ),
    ToolFormat(
        name="apriel",
        read=tagged("</tool_calls>"),
        begins=("<tool_calls>",),
        markers=("<tool_calls>", "</tool_calls>"),
        syntax=CallSyntax(
            begin="<tool_calls>[",
            head='{"name": "NAME", "arguments": ',
            tail="}",
            separator=", ",
            end="]</tool_calls>",
        ),
    ),
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
        syntax=CallSyntax(
            begin="[", head="NAME(", tail=")", separator=", ", end="]", members=_KEYWORDS
        ),
    ),
    ToolFormat(
        name="lfm2",
        read=read_marked_list("<|tool_call_end|>"),
        begins=("<|tool_call_start|>",),
        markers=("<|tool_call_start|>", "<|tool_call_end|>"),
        syntax=CallSyntax(
            begin="<|tool_call_start|>[",
            head="NAME(",
            tail=")",
            separator=", ",
            end="]<|tool_call_end|>",
            members=_KEYWORDS,
        ),
    ),
    ToolFormat(
        name="mistral",
        read=read_mistral,
        begins=("[TOOL_CALLS]",),
        markers=("[TOOL_CALLS]",),
        syntax=CallSyntax(
            begin="[TOOL_CALLS][",
            head='{"name": "NAME", "arguments": ',
            tail="}",
            separator=", ",
            end="]",
        ),
    ),
    ToolFormat(
        name="mistral_args",
        read=read_mistral,
        begins=("[TOOL_CALLS]",),
        markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        syntax=CallSyntax(head="[TOOL_CALLS]NAME[ARGS]", tail=""),
    ),
    ToolFormat(
        name="deepseek_v3",
        read=read_deepseek,
        begins=(CALLS_BEGIN, CALL_BEGIN),
        markers=_DEEPSEEK_MARKERS,
        syntax=CallSyntax(
            begin=CALLS_BEGIN,
            head=f"{CALL_BEGIN}function{SEPARATOR}NAME\n```json\n",
            tail=f"\n```{CALL_END}",
            separator="\n",
            end=CALLS_END,
        ),
    ),
    ToolFormat(
        name="deepseek_v31",
        read=read_deepseek,
        begins=(CALLS_BEGIN, CALL_BEGIN),
        markers=_DEEPSEEK_MARKERS,
        syntax=CallSyntax(
            begin=CALLS_BEGIN,
            head=f"{CALL_BEGIN}NAME{SEPARATOR}",
            tail=CALL_END,
            separator="",
            end=CALLS_END,
        ),
    ),
    ToolFormat(
        name="granite",
        read=read_calls,
        begins=("<|tool_call|>", "<tool_call>"),
        markers=("<|tool_call|>", "<tool_call>"),
        syntax=CallSyntax(
            begin="<|tool_call|>[",
            head='{"name": "NAME", "arguments": ',
            tail="}",
            separator=", ",
            end="]",
        ),
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
    ToolFormat(
        name="functiongemma",
        read=gemma("<escape>", "<end_function_call>"),
        begins=("<start_function_call>",),
        markers=("<start_function_call>", "<end_function_call>", "<escape>"),
        syntax=CallSyntax(
            head="<start_function_call>call:NAME{",
            tail="}<end_function_call>",
            members=MemberSyntax(
                head="KEY:", separator=",", text=TextSyntax(begin="<escape>", end="<escape>")
            ),
        ),
    ),
    ToolFormat(
        name="gemma4",
        read=gemma('<|"|>', "<tool_call|>"),
        begins=("<|tool_call>",),
        markers=("<|tool_call>", "<tool_call|>", '<|"|>'),
        syntax=CallSyntax(
            head="<|tool_call>call:NAME{",
            tail="}<tool_call|>",
            members=MemberSyntax(
                head="KEY:", separator=",", text=TextSyntax(begin='<|"|>', end='<|"|>')
            ),
        ),
    ),
)

TOOL_FORMATS: Mapping[str, ToolFormat] = {tool_format.name: tool_format for tool_format in _ALL}
"""All formats but gpt-oss's, in which calls can't be told from the rest of an answer: see
`caudal.chat.harmony`."""
